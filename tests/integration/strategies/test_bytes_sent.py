"""Workers tell each other the bytes that the planner predicts, whatever their number and the way they train.

Workers are threads here, and messages are counted; `test_bytes_of_jobs` counts packets.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from planned import BATCH, CLASSES, FEWEST, INPUTS, MODEL, PROFILE, UPDATES, WAYS, is_as_planned, is_near, planned
from together import TogetherRun, together
from torch import nn

from rubato.engine.state import TrainingState
from rubato.planner.links import Link
from rubato.planner.methods import Strategy, settlement_s
from rubato.planner.separated import cut_of
from rubato.profiling import averaged_bytes
from rubato.wire.spec import JobSpec, parse_spec

pytestmark = pytest.mark.usefixtures("generators")

STEPS = 4
ROWS = [
    (torch.randn(INPUTS, generator=torch.Generator().manual_seed(index)), torch.tensor(index % CLASSES))
    for index in range(BATCH["global_size"])
]
COMPRESSED: dict[str, dict[str, Any]] = {
    "topk with momentum": {"method": "topk", "density": 0.05, "momentum": 0.9},
    "sketch with momentum": {"method": "sketch", "density": 0.05, "momentum": 0.9},
}
EVERY_WAY: dict[str, dict[str, Any]] = {
    **WAYS,
    **{name: {"reproducible": False, "aggregation": {"compression": one}} for name, one in COMPRESSED.items()},
}
SHORT = {(way, 3) for way in ("asynchronous", "layer_separation", "streaming_diloco")}
"""Not `long`: those whose bytes are sent in another way each."""
CASES = [
    pytest.param(way, workers, marks=() if (way, workers) in SHORT else pytest.mark.long)
    for way in EVERY_WAY
    for workers in (2, 3, 4)
    if workers >= FEWEST.get(way, 2)
]


def model_of() -> nn.Module:
    torch.manual_seed(1)
    made: dict[str, Any] = {"torch": torch}
    exec(MODEL, made)
    model: nn.Module = made["model_of"]()
    return model


def spec_of(workers: int, **more: Any) -> JobSpec:
    return parse_spec(
        {
            "name": "test",
            "entrypoint": "main.py:train",
            "batch": BATCH,
            "workers": {"initial": workers, "min": workers, "max": workers},
            **more,
        }
    )


def sent_in_a_step(spec: JobSpec, *, is_sgd: bool, dtype: torch.dtype = torch.float32) -> list[float]:
    """By worker, in no order, the bytes that it sends from the beginning of a step to that of the next."""
    sent, rows = [], [(x.to(dtype), y) for x, y in ROWS]

    def train(run: TogetherRun, model: nn.Module) -> None:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters())
        if is_sgd:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.prepare(model=model, optimizer=optimizer, dataset=rows)
        counts = []
        for step in run.steps(steps=STEPS):
            counts.append(run.sent_bytes)
            for x, y in step:
                step.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        sent.append((counts[-1] - counts[1]) / (STEPS - 2))

    together(spec, lambda: model_of().to(dtype), train)
    assert len(sent) == spec.workers.initial
    return sent


@pytest.mark.parametrize(("way", "workers"), CASES)
def test_a_step_sends_what_is_planned(way: str, workers: int) -> None:
    spec = spec_of(workers, **EVERY_WAY[way])
    sent = sent_in_a_step(spec, is_sgd="momentum" in way)
    assert is_as_planned(max(sent), spec), (planned(spec), sorted(sent))


@pytest.mark.parametrize("way", ["local_sgd", "asynchronous"])
def test_a_state_of_bfloat16_is_averaged_in_32_bits(way: str) -> None:
    """Weights and moments have two bytes an element, and the vector in which they travel has four."""
    spec = spec_of(3, **WAYS[way])
    model = model_of().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    told = averaged_bytes(TrainingState({"": model}, {"": optimizer}, {}, {}))
    sent = sent_in_a_step(spec, is_sgd=False, dtype=torch.bfloat16)
    assert told == pytest.approx(PROFILE.state_bytes, rel=1e-3)
    stored = replace(PROFILE, state_bytes=PROFILE.state_bytes // 2)
    measured = replace(stored, averaged_bytes=told)
    assert is_near(max(sent), planned(spec, measured).sent_bytes), (planned(spec, measured), sorted(sent))
    assert planned(spec, stored).sent_bytes < 0.9 * max(sent), "as it lies in memory"


ALL = Link(0.0, 1.0)
"""A byte a second: what takes so many seconds is so many bytes."""
KEPT: dict[str, tuple[Strategy, dict[str, Any]]] = {
    "topk": (Strategy("topk"), {"aggregation": {"compression": {"method": "topk", "density": 0.05}}}),
    "topk with momentum": (
        Strategy("topk", momentum=True),
        {"aggregation": {"compression": COMPRESSED["topk with momentum"]}},
    ),
    "onebit": (Strategy("onebit"), {"aggregation": {"compression": {"method": "onebit"}}}),
    "streaming_diloco": (
        Strategy(local="streaming_diloco"),
        {"local_updates": WAYS["streaming_diloco"]["local_updates"]},
    ),
}


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.long) for workers in (2, 4))])
@pytest.mark.parametrize("way", KEPT)
def test_before_each_checkpoint_all_that_is_kept_is_sent(way: str, workers: int) -> None:
    strategy, chosen = KEPT[way]
    spec = spec_of(workers, reproducible=False, checkpoint={"every_steps": 1}, **chosen)
    settled = settlement_s(strategy, PROFILE, workers, ALL)
    sent = sent_in_a_step(spec, is_sgd="momentum" in way)
    assert is_as_planned(max(sent), spec, settled), (planned(spec), settled, sorted(sent))


@pytest.mark.parametrize(
    ("packed", "front"),
    [
        ("none", "none"),
        ("none", "bf16"),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("bf16", "none"), ("int8", "none"), ("bf16", "bf16"))),
    ],
)
@pytest.mark.parametrize(
    ("workers", "keepers"),
    [(3, 1), (4, 2), *(pytest.param(workers, 1, marks=pytest.mark.long) for workers in (2, 4))],
)
def test_within_a_round_nothing_of_the_layers_behind_the_cut_leaves_those_before_it(
    workers: int, keepers: int, packed: str, front: str
) -> None:
    """From one update to the next they send activations and gradients of their own layers, and no more.

    As many as they have samples: four microbatches are dealt out whole, so with three that compute one has two of them.
    What follows the last update of a step, in which all tell each other the whole state, is left out.
    """
    formats = {"cut_format": packed, "front_format": front}
    local = {"method": "layer_separation", "cut": "head", "sync_every": UPDATES, "keepers": keepers, **formats}
    spec = spec_of(workers, reproducible=False, local_updates=local)
    sent: dict[int, list[list[int]]] = {}

    def train(run: TogetherRun, model: nn.Module) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
        rounds: list[list[int]] = []
        for step in run.steps(steps=STEPS):
            counts = []
            for x, y in step:
                counts.append(run.sent_bytes)
                step.backward(nn.functional.cross_entropy(model(x), y))
            rounds.append(counts)
            optimizer.step()
        sent[run.session.rank] = rounds

    together(spec, model_of, train)
    chosen = spec.local_updates
    pieces = spec.num_microbatches
    cut = cut_of(PROFILE, "head", chosen.cut_format, keepers, chosen.front_format, pieces)
    assert cut is not None
    told = cut.sent(PROFILE, workers, BATCH["global_size"] / UPDATES)
    assert sorted(sent) == list(range(workers))
    for rank in range(keepers, workers):
        for counts in sent[rank]:
            assert len(counts) == UPDATES
            for before, after in pairwise(counts):
                assert is_near(after - before, told[rank]), (rank, counts, told)
