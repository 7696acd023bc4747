"""The place of measured figures in docs/benchmarks.md: between two markers. A number gets there in no other way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.processes import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"


def insert(document: Path, name: str, text: str) -> None:
    """Replace what is between the markers of a name.

    Raises:  ValueError: the document has no such markers.
    """
    begin, end = f"<!-- {name}: written by a script -->\n", f"<!-- {name}: end -->"
    before, found, rest = document.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{document} has no {begin.strip()} ... {end}: nothing was written")
    document.write_text(f"{before}{begin}\n{text}\n\n{end}{after}")


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of cells under heads."""
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (heads, *rows))
    return "\n".join([head, "|" + "---|" * len(heads), *lines])


def publish(name: str, text: str, *, writes: bool) -> None:
    """Print what was measured, and put it between the markers of that name if that was asked for."""
    print(text)
    if writes:
        insert(DOCUMENT, name, text)
