"""What a checkpoint had kept goes to the parameters of its names, and to methods that mean the same by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from aggregating import KEEPING, Job
from torch import nn

from rubato.checkpoint.tree import decode, encode
from rubato.engine.flat import FlatLayout
from rubato.engine.streaming import Streaming
from rubato.wire.aggregation import AggregationSpec, CompressionSpec, Method
from rubato.wire.local_updates import LocalUpdatesSpec

MEANINGS = {
    **dict.fromkeys(
        ("topk", "gtopk", "hierarchical_topk", "threshold", "powersgd", "sketch", "sketched_sgd"), "residual"
    ),
    **dict.fromkeys(("topk with momentum", "sketch with momentum", "sketched_sgd with momentum"), "velocity"),
    "onebit": "residual and stripe",
    "fp16": "nothing",
}
"""By method, what it keeps."""


@pytest.mark.parametrize("before", MEANINGS)
@pytest.mark.parametrize("after", MEANINGS)
def test_another_method_goes_on_with_what_means_the_same_to_it(before: str, after: str) -> None:
    """All else is dropped, and told."""
    old, new = (Job(cast(Method, name.split()[0]), 2, **momentum_of(name)) for name in (before, after))
    old.begin()
    for _ in range(3):
        old.exchange(counts=True)
    missing = old.given - old.applied
    old.settle()
    for worker in new.workers:
        worker.load_state_dict(old.workers[0].state_dict())
        worker.resume()
    kept = new.workers[0].state_dict()["settled"]
    if MEANINGS[before] == MEANINGS[after]:
        assert {worker.dropped for worker in new.workers} == {0.0}
        own = old.workers[0].state_dict()["settled"] or {}
        assert all(torch.equal(kept[name], own[name]) for name in own.keys() & kept.keys() - {"q"})
        if "momentum" not in before and before != "fp16":  # momentum makes more of it, and what is rounded off is gone
            new.given += missing
    else:
        assert {worker.dropped for worker in new.workers} == {float(MEANINGS[before] != "nothing")}
        assert not any(part.any() for name, part in kept.items() if name != "q")
    new.begin()
    new.step = old.step
    new.exchange(counts=True)
    if "momentum" not in after and after != "fp16":
        assert new.missing()[: new.flat.gradients].abs().max() < 1e-9


def momentum_of(name: str) -> dict[str, float]:
    return {"momentum": 0.9} if name.endswith("with momentum") else {}


def kept_after_a_step(job: Job) -> dict[str, Any]:
    """As a checkpoint has it."""
    job.begin()
    job.exchange(counts=True)
    job.settle()
    return job.workers[0].state_dict()


def test_a_residual_of_another_rank_is_gone_on_with() -> None:
    before, after = Job("powersgd", 1), Job("powersgd", 1)
    after.spec = AggregationSpec(compression=CompressionSpec("powersgd", rank=2))
    after.workers = [after.new()]
    after.workers[0].load_state_dict(kept_after_a_step(before))
    assert after.workers[0].dropped == 0
    after.begin()
    after.given += before.given - before.applied
    after.exchange(counts=True)
    assert after.missing().abs().max() < 1e-9


def named(*names: str) -> FlatLayout:
    """Parameters of one shape, in this order, and a vector."""
    shapes = {name: (3, 4) if name != "c" else (5,) for name in names}
    return FlatLayout([(name, nn.Parameter(torch.zeros(shapes[name]).double())) for name in names], [])


def by_name(job: Job) -> dict[tuple[str, str], list[float]]:
    """What all have settled, by part and parameter."""
    settled, found = job.workers[0].state_dict()["settled"], {}
    for part in settled.keys() - {"q"}:
        at = 0
        for (name, one), _ in zip(job.flat.parameters, job.flat.pieces, strict=True):
            if (one.ndim > 1) == (part != "momentum_of_others"):
                found[part, name] = settled[part][at : at + one.numel()].tolist()
                at += one.numel()
    return found


@pytest.mark.parametrize("method", [name for name in MEANINGS if MEANINGS[name] != "nothing"])
def test_what_is_kept_belongs_to_a_name_in_whichever_order_a_program_has_its_parameters(method: str) -> None:
    saved, swapped, renamed = (
        Job(cast(Method, method.split()[0]), 1, named(*names), **momentum_of(method))
        for names in (("a", "b", "c"), ("c", "b", "a"), ("z", "a", "c"))
    )
    saved.begin()
    for _ in range(2):
        saved.exchange(counts=True)
    saved.settle()
    expected = by_name(saved)
    assert expected["residual", "a"] != expected["residual", "b"]
    assert any(expected["residual", "b"])
    for job in (saved, swapped, renamed):
        state = decode(*encode(saved.workers[0].state_dict()))
        job.workers[0].load_state_dict(state)
    for job in (saved, swapped):
        assert by_name(job) == expected
        assert job.workers[0].dropped == 0.0
    of_others = {("momentum_of_others", "c")} & expected.keys()
    found = by_name(renamed)
    for part in {part for part, _ in expected} - {"momentum_of_others"}:
        assert found[part, "a"] == expected[part, "a"]
        assert not any(found[part, "z"]), "b is trained no more"
    assert all(found[one] == expected[one] for one in of_others)
    assert 0 < renamed.workers[0].dropped < 1


@pytest.mark.parametrize("names", [("b", "a"), ("a",)])
def test_where_a_checkpoint_names_no_parameters_it_is_taken_as_it_lies(names: Sequence[str]) -> None:
    """As releases before this one saved it. Nothing is kept of another number of elements."""
    saved, other = Job("topk", 1, named("a", "b")), Job("topk", 1, named(*names))
    state = kept_after_a_step(saved)
    del state["pieces"]
    other.workers[0].load_state_dict(state)
    kept = other.workers[0].state_dict()["settled"]["residual"]
    assert other.workers[0].dropped == float(len(names) == 1)
    assert torch.equal(kept, state["settled"]["residual"] if len(names) > 1 else torch.zeros(12).double())


def test_what_another_method_has_kept_is_dropped() -> None:
    before, after = Job("onebit", 1), Job("topk", 1)
    after.workers[0].load_state_dict(kept_after_a_step(before))
    assert after.workers[0].dropped == 1.0
    assert after.missing().abs().max() == 0


@pytest.mark.parametrize("method", KEEPING)
def test_what_a_checkpoint_has_kept_in_other_units_is_dropped(method: Method) -> None:
    """Those of the sum of weighted gradients, as the first ones have it, which do not say so."""
    before, after = Job(method, 1), Job(method, 1)
    state = kept_after_a_step(before)
    del state["unit"]
    after.workers[0].load_state_dict(state)
    assert after.workers[0].dropped == 1.0
    after.begin()
    after.exchange(counts=True)
    assert after.missing().abs().max() < 1e-9


@pytest.mark.parametrize("method", KEEPING)
def test_a_checkpoint_of_a_method_that_keeps_nothing_is_gone_on_from(method: Method) -> None:
    before, after = Job("fp16", 1), Job(method, 2)
    before.begin()
    before.exchange(counts=True)
    for worker in after.workers:
        worker.load_state_dict(before.workers[0].state_dict())
        assert not worker.is_settled, "as a joiner takes it"
        worker.resume()
        assert worker.dropped == 0.0
    after.begin()
    after.exchange(counts=True)
    assert after.missing().abs().max() < 1e-9


# --- weights of one's own ---------------------------------------------------------------------------------------------


def streaming_over(*names: str) -> tuple[Streaming, FlatLayout]:
    made, flat = Streaming(LocalUpdatesSpec("streaming_diloco", fragments=2)), named(*names)
    made.prepare(flat, None)  # type: ignore[arg-type]
    return made, flat


def numbered(streaming: Streaming) -> dict[str, Any]:
    """What it has to save, with another number in each place."""
    state = streaming.state_dict()
    numbers = torch.arange(1.0, 1 + len(state["shared"]), dtype=torch.float64)
    return {**state, "shared": numbers, "momentum": -numbers}


def parameters_of(flat: FlatLayout, vector: torch.Tensor) -> dict[str, list[float]]:
    pieces = zip(flat.parameters, flat.pieces, strict=True)
    return {name: vector[piece.start : piece.start + piece.numel].tolist() for (name, _), piece in pieces}


@pytest.mark.parametrize("has_names", [True, False], ids=["now", "of an older release"])
def test_what_all_share_belongs_to_a_name_in_whichever_order_a_program_has_its_parameters(has_names: bool) -> None:
    (saved, before), (other, now) = streaming_over("a", "b", "c"), streaming_over("b", "a", "c")
    state = numbered(saved)
    if not has_names:
        del state["pieces"]
    other.load_state_dict(decode(*encode(state)))
    other.resume()
    for name in ("shared", "momentum"):
        found = parameters_of(now, other.state_dict()[name])
        assert (found == parameters_of(before, state[name])) is has_names, "an older release tells nothing of its order"
    assert other.dropped == 0.0


def test_what_was_shared_of_a_parameter_that_is_trained_no_more_is_dropped_and_told() -> None:
    (saved, before), (other, now) = streaming_over("a", "b", "c"), streaming_over("z", "a", "c")
    state = numbered(saved)
    with torch.no_grad():
        now.parameters[0][1].fill_(7.0)
    other.load_state_dict(state)
    other.resume()
    for name, anew in (("shared", 7.0), ("momentum", 0.0)):
        expected, found = parameters_of(before, state[name]), parameters_of(now, other.state_dict()[name])
        assert all(found[one] == expected[one] for one in ("a", "c"))
        assert set(found["z"]) == {anew}
    assert 0 < other.dropped < 1


def test_another_number_of_elements_without_names_is_dropped_and_told() -> None:
    (saved, _), (other, _) = streaming_over("a", "b", "c"), streaming_over("a", "c")
    state = numbered(saved)
    del state["pieces"]
    other.load_state_dict(state)
    other.resume()
    assert not other.state_dict()["shared"].any(), "they are the weights, which are zeros"
    assert not other.state_dict()["momentum"].any()
    assert other.dropped == 1.0
