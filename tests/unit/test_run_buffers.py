"""Buffers in a run: each microbatch begins with those of the step's start, whatever a module puts in their places."""

from __future__ import annotations

import pytest
import torch
from alone import ROWS, AloneRun, loss_of
from torch import nn

from rubato.errors import ModelError

pytestmark = pytest.mark.usefixtures("generators")


class Buffered(nn.Module):
    """Counts its microbatches, and has a buffer of every integer kind; one of them is empty, one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("empty", torch.zeros(0, 4, dtype=torch.int32))
        self.register_buffer("table", torch.arange(6, dtype=torch.int16).view(2, 3).t())
        self.register_buffer("first", torch.full((), -1.0, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("count").add_(1)
        self.get_buffer("table").add_(1)
        self.get_buffer("flags")[int(self.get_buffer("count")) % 3] = True
        self.get_buffer("first").fill_(float(x[0, 0]))
        return self.layer(x)  # type: ignore[no-any-return]


def test_integer_buffers_come_from_the_lowest_microbatch() -> None:
    run, model = AloneRun(), Buffered()
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters()), dataset=ROWS)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        assert int(model.get_buffer("count")) == step.index + 1
        assert model.get_buffer("table").tolist() == [
            [index + step.index + 1 for index in (k, k + 3)] for k in range(3)
        ]
    assert model.get_buffer("flags").tolist() == [False, True, True]
    assert not model.get_buffer("table").is_contiguous()


class Centred(nn.Module):
    """Keeps a moving centre of its inputs: in place, or by putting a new tensor where the old one was."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__()
        self.layer, self.replaces = nn.Linear(3, 1), replaces
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centre, seen = self.get_buffer("centre"), self.get_buffer("seen")
        moved = centre * 0.9 + x.detach().mean(0) * 0.1
        if self.replaces:
            self.centre, self.seen = moved, seen + 1
        else:
            centre.copy_(moved)
            seen.add_(1)
        return self.layer(x - centre)  # type: ignore[no-any-return]


def test_a_module_may_put_a_new_tensor_in_a_buffers_place() -> None:
    digests = []
    for replaces in (False, True):
        run = AloneRun()
        torch.manual_seed(1)
        model = Centred(replaces=replaces)
        run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=ROWS)
        for step in run.steps(steps=4):
            for x, y in step:
                centre = model.get_buffer("centre").clone()
                step.backward(loss_of(model, x, y))
                assert not torch.equal(centre, model.get_buffer("centre"))
        assert int(model.get_buffer("seen")) == 4
        digests.append(run.finish())
    assert digests[0] == digests[1]


class Watching(nn.Module):
    """Puts what is somebody else's where its buffers are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("old", torch.zeros(1, 3))
        self.register_buffer("one", torch.full((2,), 1.0))
        self.register_buffer("two", torch.full((2,), 2.0))
        self.register_buffer("chosen", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.old = self.layer.weight.detach()
        self.chosen = self.one if float(x[0, 0]) > 0 else self.two
        return self.layer(x)  # type: ignore[no-any-return]


def test_what_a_module_puts_in_a_buffers_place_stays_as_it_is() -> None:
    run, model = AloneRun(), Watching()
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=ROWS)
    for step in run.steps(steps=3):
        before = model.layer.weight.detach().clone()
        for x, y in step:
            step.backward(loss_of(model, x, y))
            assert torch.equal(model.layer.weight, before)
        assert torch.equal(model.layer.weight, before)
        assert model.get_buffer("one").tolist() == [1.0, 1.0]
        assert model.get_buffer("two").tolist() == [2.0, 2.0]
        places = [model.get_buffer(name).data_ptr() for name in ("old", "one", "two", "chosen")]
        assert len({*places, model.layer.weight.data_ptr()}) == 5


def test_a_buffer_that_changes_its_shape_is_named() -> None:
    run, model = AloneRun(), Centred(replaces=True)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=ROWS)
    step = next(run.steps())

    def compute() -> None:
        for x, y in step:
            step.backward(loss_of(model, x, y))
            model.centre = torch.zeros(4)

    with pytest.raises(ModelError, match=r"buffer centre was \(3,\) torch.float32 when .* and is \(4,\) torch.float32"):
        compute()
