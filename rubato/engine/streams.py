"""After each step the members tell each other where the streams stand that they have read."""

from __future__ import annotations

import torch

from rubato.data.randomness import capture, restore
from rubato.data.source import Source
from rubato.data.stream import Position, StreamSource
from rubato.engine.session import Session
from rubato.engine.table import fill_table


def advance(session: Session, source: Source) -> None:
    """Move all streams past the step that was just reduced, equally on all members; other sources need nothing.

    Where whoever read a stream was lost before it told, another reads that microbatch again, only to see where it ends.
    """
    if not isinstance(source, StreamSource):
        return
    step, ordinal = session.completed.key
    table = torch.full((session.num_microbatches, len(Position._fields)), float("nan"), dtype=torch.float64)
    for v, end in source.known_ends.items():
        table[v] = torch.tensor(end)

    def read_again(v: int) -> Position:
        before = capture()
        try:
            return source.end_of(v)
        finally:
            restore(before)

    whole = fill_table(session, (step, ordinal + 1), table, read_again, ask_first=True)
    source.move_to([Position(*map(int, row)) for row in whole.tolist()])
