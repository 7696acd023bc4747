"""A call that a thread makes meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch

from rubato.engine.errand import Errand
from rubato.errors import GenerationLost

CPU = torch.device("cpu")


def test_it_goes_on_meanwhile_and_gives_what_the_call_gives() -> None:
    may_end = threading.Event()

    def call() -> torch.Tensor:
        assert may_end.wait(10)
        return torch.ones(3)

    errand = Errand("a test", CPU, call)
    may_end.set()
    assert torch.equal(errand.result(), torch.ones(3))


def test_what_the_call_raises_is_raised_where_its_result_is_asked_for() -> None:
    def call() -> torch.Tensor:
        raise GenerationLost("a peer is gone")

    errand = Errand("a test", CPU, call)
    errand.wait()
    with pytest.raises(GenerationLost, match="a peer is gone"):
        errand.result()
