from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rubato.checkpoint.due import Lane
from rubato.checkpoint.storage import LocalFolder
from rubato.checkpoint.stripes import Stripe, document_of, read_document, read_stripes
from rubato.engine.saver import Saver
from rubato.wire import worker as wire

VALUES = torch.arange(10.0)


class State:
    """As much of a training state as a saver needs."""

    def __init__(self) -> None:
        self.tensor = VALUES.clone()

    def encode(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        return {"values": 0}, [self.tensor]

    def state_dict_names(self) -> dict[str, Any]:
        return {}


def record(world: int, number: int = 1) -> wire.GenerationRecord:
    members = tuple(wire.Member(f"w{rank}", f"1.{rank}") for rank in range(world))
    return wire.GenerationRecord(1, number, members, (0,), "", wire.Origin("fresh"), "start", 0)


@pytest.fixture
def said() -> queue.SimpleQueue[Any]:
    return queue.SimpleQueue()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes wait for this."""
    event, real = threading.Event(), Stripe.write

    def write(stripe: Stripe, folder: Any) -> Any:
        event.wait(30)
        return real(stripe, folder)

    monkeypatch.setattr(Stripe, "write", write)
    yield event
    event.set()


def save(
    saver: Saver, state: Any, rank: int, world: int, step: int = 5, number: int = 1, *, is_last: bool = False
) -> None:
    told: dict[str, Any] = {"extra": {"step": step}, "metrics": {"loss": 1.0}, "is_last": is_last}
    saver.save(state, record(world, number), rank, step=step, **told)


def test_what_is_written_is_the_state_at_the_boundary(tmp_path: Path, said: Any, held: threading.Event) -> None:
    state, savers = State(), [Saver(str(tmp_path), f"1.{rank}", said.put) for rank in range(2)]
    for rank, saver in enumerate(savers):
        save(saver, state, rank, 2)
    state.tensor.zero_()
    held.set()
    for saver in savers:
        saver.wait()
    parts = [said.get(timeout=10) for _ in savers]
    names = [file["name"] for part in parts for file in part.files]
    folder = LocalFolder(tmp_path / "1-5")
    document, layout = read_document(folder, document_of(names))
    names.remove(document_of(names))
    assert document == {"state": {"values": 0}, "extra": {"step": 5}, "models": {}}
    assert torch.equal(read_stripes(folder, layout, names)[0], VALUES)
    for part in parts:
        assert 0 <= part.terms["stall_seconds"] <= part.terms["seconds"]


def test_any_survivor_pair_can_finish_without_the_third(tmp_path: Path, said: Any) -> None:
    """Rank 1 dies before it has written: rank 2 keeps a copy of its part."""
    state, savers = State(), {rank: Saver(str(tmp_path), f"1.{rank}", said.put) for rank in (0, 2)}
    for rank, saver in savers.items():
        save(saver, state, rank, 3)
    state.tensor.zero_()
    savers[2].obey(wire.WriteStripe(1, 1, "1-5", 1))
    for saver in savers.values():
        saver.wait()
    parts = [said.get(timeout=10) for _ in range(3)]
    assert sorted((part.index, part.incarnation) for part in parts) == [(0, "1.0"), (1, "1.2"), (2, "1.2")]
    folder = LocalFolder(tmp_path / "1-5")
    names = [file["name"] for part in parts for file in part.files]
    _, layout = read_document(folder, document_of(names))
    names.remove(document_of(names))
    assert torch.equal(read_stripes(folder, layout, names)[0], VALUES)


def test_the_document_has_an_heir_too(tmp_path: Path, said: Any) -> None:
    saver = Saver(str(tmp_path), "1.1", said.put)
    save(saver, State(), 1, 2)
    saver.obey(wire.WriteStripe(1, 1, "1-5", 0))
    saver.wait()
    parts = {part.index: part for part in (said.get(timeout=10), said.get(timeout=10))}
    document, stripe = (file["name"] for file in parts[0].files)
    assert document == document_of([document])
    assert stripe == "stripe-00000-of-00002.safetensors"


def test_an_order_that_comes_before_the_copy_is_carried_out_then(tmp_path: Path, said: Any) -> None:
    saver = Saver(str(tmp_path), "1.1", said.put)
    saver.obey(wire.WriteStripe(1, 1, "1-5", 0))
    save(saver, State(), 1, 2)
    saver.wait()
    assert sorted(said.get(timeout=10).index for _ in range(2)) == [0, 1]


def test_copies_go_when_the_checkpoint_is_whole(tmp_path: Path, said: Any) -> None:
    saver = Saver(str(tmp_path), "1.1", said.put)
    save(saver, State(), 1, 2)
    saver.wait()
    saver.obey(wire.ForgetStripes(1, "1-4"))
    assert saver._staged is not None
    saver.obey(wire.ForgetStripes(1, "1-5"))
    assert saver._staged is None


def test_what_cannot_be_written_is_said(tmp_path: Path, said: Any) -> None:
    (tmp_path / "1-5").write_text("a file in the way")
    saver = Saver(str(tmp_path), "1.0", said.put)
    save(saver, State(), 0, 1, number=4)
    saver.wait()
    failed = said.get(timeout=10)
    assert isinstance(failed, wire.StripeFailed)
    assert (failed.folder, failed.step, failed.generation) == ("1-5", 5, 4)
    assert "cannot write stripe" in failed.cause


def test_a_write_that_still_goes_on_costs_the_next_checkpoint_but_not_the_last(
    tmp_path: Path, said: Any, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.engine.saver.BUSY_S", 0.01)
    saver = Saver(str(tmp_path), "1.0", said.put)
    save(saver, State(), 0, 1, step=5)
    save(saver, State(), 0, 1, step=6)
    skipped = said.get(timeout=10)
    assert isinstance(skipped, wire.StripeFailed)
    assert (skipped.folder, skipped.step) == ("1-6", 6)
    assert "still being written" in skipped.cause
    last = threading.Thread(target=lambda: save(saver, State(), 0, 1, step=7, is_last=True))
    last.start()
    held.set()
    last.join(10)
    saver.wait()
    assert [said.get(timeout=10).folder for _ in range(2)] == ["1-5", "1-7"]


def test_a_slow_write_is_waited_for_once(
    tmp_path: Path, said: Any, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    real = Lane.wait
    monkeypatch.setattr(Lane, "wait", lambda lane, seconds=None: (waited.append(seconds), real(lane, seconds))[1])
    monkeypatch.setattr("rubato.engine.saver.BUSY_S", 0.01)
    saver = Saver(str(tmp_path), "1.0", said.put)
    for step in (5, 6, 7, 8):
        save(saver, State(), 0, 1, step=step)
    assert waited == [0.01, 0.01, 0.0, 0.0]
    held.set()
    saver.wait()
    for step in (9, 10):
        save(saver, State(), 0, 1, step=step)
        saver.wait()
    assert waited[4:] == [None, 0.0, None, 0.01, None], "the next one is another one"
    told = [said.get(timeout=10) for _ in range(6)]
    assert [one.folder for one in told if isinstance(one, wire.StripeWritten)] == ["1-5", "1-9", "1-10"]


def test_a_write_that_hangs_is_given_up_once_and_so_is_what_follows(
    tmp_path: Path, said: Any, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.checkpoint.due.DUE_S", 0.01)
    saver = Saver(str(tmp_path), "1.0", said.put)
    save(saver, State(), 0, 1, step=5)
    save(saver, State(), 0, 1, step=6, is_last=True)
    saver.wait()
    failed = [said.get(timeout=10) for _ in range(2)]
    assert {one.folder for one in failed} == {"1-5", "1-6"}
    assert all("the storage hangs" in one.cause for one in failed)
    held.set()
    assert isinstance(said.get(timeout=10), wire.StripeWritten), "it came to its end after all"
