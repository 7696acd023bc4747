"""A table that the members fill together: the exchange of evaluations and of the positions of streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rubato.engine.entry import Key
from rubato.engine.session import Session
from rubato.errors import GenerationLost


def fill_table(
    session: Session, key: Key, table: torch.Tensor, value: Callable[[int], Any], *, ask_first: bool = False
) -> torch.Tensor:
    """Compute rows and exchange them until the table is whole, on all members; each row is computed by one of them.

    Args:
        key: of this exchange.
        table: what this worker knows; NaN marks what it does not.
        value: computes a row.
        ask_first: the members know rows already, so nothing is computed before they have told.
    Returns: the whole table, equal on every worker.
    Shapes:  table (n,) or (n, m), n >= 1, float64.
    """
    is_long = session.control.present_stage == "long_phase"
    missing = list(range(len(table)))
    must_ask = ask_first
    while missing:
        session.check(key)
        if not must_ask and not session.knows_table(key):
            for row in missing[session.rank :: session.world]:
                if table[row].isnan().any():
                    session.control.stage("evaluate")  # the deadline is for one row
                    table[row] = torch.as_tensor(value(row), dtype=torch.float64)
        session.control.stage("exchange")
        try:
            table = session.gather_table(key, table)
        except GenerationLost as error:
            session.membership.recover(str(error))
            must_ask = True  # where the others stand is not known any more
        else:
            must_ask = False
            missing = table.isnan().view(len(table), -1).any(1).nonzero().flatten().tolist()
    session.complete_table(key, table)
    session.control.stage("long_phase" if is_long else "update")
    return table
