from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.document import DOCUMENT, insert


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x: written by a script -->\nold\n<!-- x: end -->\nb <!-- y: written by a script -->\n")
    insert(page, "x", "new")
    insert(page, "x", "newer")
    assert page.read_text() == (
        "a\n<!-- x: written by a script -->\n\nnewer\n\n<!-- x: end -->\nb <!-- y: written by a script -->\n"
    )
    with pytest.raises(ValueError, match="nothing was written"):
        insert(page, "y", "new")


@pytest.mark.parametrize("name", ["peers", "steady", "joins", "cluster", "short", "prefetch", "load", "checkpoints"])
def test_the_page_has_a_place_for_what_the_scripts_measure(name: str) -> None:
    text = DOCUMENT.read_text()
    assert text.count(f"<!-- {name}: written by a script -->\n") == 1
    assert text.count(f"<!-- {name}: end -->") == 1
