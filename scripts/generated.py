"""Parts of documents that a script writes, between two marks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The checkout comes before an installed wheel.
sys.path.insert(0, str(ROOT))


def keep_page(page: Path, wanted: str, what: str, script: str, arguments: Sequence[str]) -> int:
    """Write a page; with `--check` only compare, and give 1 where it is stale.

    Args:
        what: is written, for the message.
        script: that writes it.
    """
    if "--check" not in arguments:
        page.write_text(wanted)
    elif not page.exists() or page.read_text() != wanted:
        print(f"{page.name}: {what} is stale; run: python scripts/{script}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Part:
    """One part of one page, and the script that writes it."""

    page: Path
    name: str
    script: str

    def keep(self, text: str, arguments: Sequence[str]) -> int:
        """Write the text into the page; with `--check` only compare, and give 1 where it is stale."""
        wanted = self._inserted(self.page.read_text(), text)
        return keep_page(self.page, wanted, f"the {self.name}", self.script, arguments)

    def _inserted(self, page: str, text: str) -> str:
        begin, end = f"<!-- {self.name}: written by scripts/{self.script} -->", f"<!-- {self.name}: end -->"
        before, begun, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (begun and ended):
            raise SystemExit(f"{self.page.name} must contain the lines\n{begin}\n{end}")
        return f"{before}{begin}\n{text}\n{end}{after}"
