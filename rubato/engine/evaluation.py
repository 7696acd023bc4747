"""Evaluation shared out over the workers, with the same bits whatever their number.

The data is cut into fixed chunks; chunk values are summed in float64 in the order of the chunks. A chunk is computed by
one worker; when workers are lost only chunks that nobody holds are computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rubato.data.fetch import Collate, fetch, validate_dataset
from rubato.data.randomness import capture, restore, seed_all
from rubato.engine.session import Session
from rubato.engine.step import to_device
from rubato.errors import GenerationLost, ModelError


def evaluate(session: Session, dataset: Any, fn: Callable[..., Any], batch: int, collate: Collate | None) -> float:
    """Mean of `fn` over the dataset; all workers must call it at the same place.

    Args:
        fn: called with a batch (its parts, where it is a tuple or list), returns the mean value over it.
        batch: samples in a chunk, >= 1.
    Returns: the mean over all samples, equal on every worker.
    Raises:  ModelError: fn returns no number.
    """
    count = validate_dataset(dataset)
    if batch < 1:
        raise ModelError(f"run.evaluate needs batch >= 1, got {batch}")
    bounds = [(first, min(first + batch, count)) for first in range(0, count, batch)]
    step, ordinal = session.last_key
    key = (step, ordinal + 1)
    table = torch.full((len(bounds),), float("nan"), dtype=torch.float64)
    modes = [(module, module.training) for model in session.state.models.values() for module in model.modules()]
    random_state = capture()
    try:
        for model in session.state.models.values():
            model.eval()
        merged = _fill(session, key, table, lambda chunk: _value(session, dataset, fn, collate, bounds[chunk], chunk))
    finally:
        for module, mode in modes:
            module.training = mode
        restore(random_state)
    total = 0.0
    for value, (first, last) in zip(merged.tolist(), bounds, strict=True):
        total += value * (last - first)
    return total / count


def _fill(session: Session, key: tuple[int, int], table: torch.Tensor, value: Callable[[int], float]) -> torch.Tensor:
    """Compute and exchange chunks until the table is whole. NaN marks what nobody has computed yet."""
    missing = list(range(len(table)))
    while True:
        session.check()
        if not session.knows_table(key):
            for chunk in missing[session.rank :: session.world]:
                if torch.isnan(table[chunk]):
                    session.control.stage("evaluate")  # the deadline is for one chunk
                    table[chunk] = value(chunk)
            session.control.stage("exchange")
        try:
            table = session.gather_table(key, table)
        except GenerationLost as error:
            session.membership.recover(str(error))
            # Where the others stand is not known any more: ask before anything is computed again.
            try:
                table = session.gather_table(key, table)
            except GenerationLost as again:
                session.membership.recover(str(again))
        missing = torch.isnan(table).nonzero().flatten().tolist()
        if not missing:
            session.complete_table(key, table)
            session.control.stage("update")
            return table


def _value(
    session: Session,
    dataset: Any,
    fn: Callable[..., Any],
    collate: Collate | None,
    bounds: tuple[int, int],
    chunk: int,
) -> float:
    """`fn` over one chunk. A NaN is told as infinity: in the table NaN means that nobody has computed the chunk."""
    ids = range(*bounds)
    batch = to_device(fetch(dataset, ids, collate=collate, seed=session.spec.seed, epoch=0), session.device)
    seed_all(session.spec.seed, session.step, "evaluate", chunk)
    with torch.no_grad():
        value = fn(*batch) if isinstance(batch, (tuple, list)) else fn(batch)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"run.evaluate: fn must return the mean over the batch as one number, got {value!r}"
        ) from error
    return number if number == number else float("inf")
