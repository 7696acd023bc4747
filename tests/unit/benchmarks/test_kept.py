"""Values that a measurement has kept, and goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kept import Kept

TERMS = {"workers": 4}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept.json"


def test_what_was_kept_is_there_for_the_next_and_the_rest_is_not(file: Path) -> None:
    Kept[float](file, TERMS).put("10 Mb/s", "ring", 2.5)
    again = Kept[float](file, TERMS)
    assert again.get("10 Mb/s", "ring") == 2.5
    assert again.get("10 Mb/s", "diloco") is None, "a way that was not there yet, of a link that was"
    assert again.get("50 Mb/s", "ring") is None


def test_what_is_missing_is_put_beside_what_was_kept(file: Path) -> None:
    first = Kept[float](file, TERMS)
    first.put("10 Mb/s", "ring", 2.5)
    first.put("50 Mb/s", "ring", 0.5)
    Kept[float](file, TERMS).put("10 Mb/s", "diloco", 1.5)
    again = Kept[float](file, TERMS)
    assert [again.get("10 Mb/s", name) for name in ("ring", "diloco")] == [2.5, 1.5]
    assert again.get("50 Mb/s", "ring") == 0.5


def test_values_of_other_terms_are_not_mixed(file: Path) -> None:
    Kept[float](file, TERMS).put("10 Mb/s", "ring", 2.5)
    before = file.read_text()
    with pytest.raises(ValueError, match="name another file"):
        Kept[float](file, {"workers": 8})
    assert file.read_text() == before


def test_without_a_file_values_are_kept_in_memory() -> None:
    kept = Kept[float](None, TERMS)
    kept.put("10 Mb/s", "ring", 2.5)
    assert kept.get("10 Mb/s", "ring") == 2.5
