"""Jobs that have another number of workers in each step, a thread each: the bits are those of one worker.

A step begins with the state that the one before left; `tests/chaos` has workers that come and go meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import torch
from alone import loss_of, own_generators
from groups import fake_group
from hypothesis import given, settings
from hypothesis import strategies as st
from together import Saved, TogetherRun, together
from torch import nn

from rubato.wire.spec import parse_spec

MICROBATCHES, MOST = 6, 4
ROWS = [
    (torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(float(index % 3)))
    for index in range(32)
]
"""Three steps an epoch, of 12 samples, 12 and 8: the last one of four microbatches."""


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def after_step(step: int, world: int, before: Saved | None) -> Saved:
    """The state behind a step of so many workers."""
    spec = parse_spec(
        {
            "name": "test",
            "entrypoint": "main.py:train",
            "workers": {"initial": world, "min": 1, "max": MICROBATCHES},
            "batch": {"global_size": 2 * MICROBATCHES, "num_microbatches": MICROBATCHES},
        }
    )

    def train(run: TogetherRun, model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
        for one in run.steps(steps=step):
            for x, y in one:
                one.backward(loss_of(model, x, y))
            optimizer.step()

    _, saved = together(spec, model_of, train, before, lambda count: nullcontext(fake_group(count)))
    return saved[step]


@cache
def of_one_worker(steps: int) -> Saved | None:
    return after_step(steps, 1, of_one_worker(steps - 1)) if steps else None


@settings(max_examples=settings.default.max_examples // 10)
@given(st.lists(st.integers(1, MICROBATCHES), min_size=1, max_size=MOST))
def test_whatever_the_numbers_of_workers_the_bits_are_those_of_one(worlds: Sequence[int]) -> None:
    saved = None
    with own_generators():
        for step, world in enumerate(worlds, 1):
            saved = after_step(step, world, saved)
            expected = of_one_worker(step)
            assert expected is not None
            assert saved.document == expected.document
            assert bits(saved) == bits(expected)
    assert len({bits(of_one_worker(step)) for step in range(len(worlds) + 1)}) == len(worlds) + 1


def bits(saved: Saved | None) -> tuple[bytes, ...]:
    """Of weights, buffers and what the optimizer keeps."""
    return () if saved is None else tuple(one.cpu().numpy().tobytes() for one in saved.tensors)
