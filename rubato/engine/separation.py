"""Layers with few parameters on most workers, those with many on one: layer separation, in rounds.

round      one step of the job, of H updates. All parameters and the optimizers' state are the same on all workers when
           it begins
front      the layers up to a cut: convolutional ones, say. All workers but one compute them, each with its own samples
back       the module at the cut, with most of the parameters. The owner of the step's microbatches, the *keeper*,
           computes it for all: it gets what comes in, tells what goes out, gets the gradient of that, and tells the
           gradient of what came in. The program calls it as ever, and computes its loss where its samples are
update     the others sum the gradients of the front, weighted by their samples, and step their optimizers; the keeper
           does with those of the back. Neither gradients nor weights of the back travel
close      one of the others tells the keeper the front, with buffers and what its optimizers keep. How far all came is
           the gradient of the step, and the exchange gives it to all
several    F keepers, where one is too slow for all: each computes the back for every F-th of the others, and they sum
keepers    the gradients of the back. The first leads the round; the others tell it their losses at its end

So between two rounds everybody has the same state: there workers come and go, checkpoints are saved, and all can be
evaluated. Where one is lost amid a round, the keeper too, the others begin that round again. One worker alone computes
all layers. A sum is in the order of ranks, and so is whatever changes buffers behind the cut, so the same workers give
the same bits.

Sent by one of C others for b samples with A elements at the cut and K behind it: b (A + K) each way, in fewer bytes
where `strategies.cut_format` packs them, and 2n(C-1)/C of the n of the front (`engine.front`). It pays where that is
far less than what the back holds. F keepers send 2m(F-1)/F of the m bytes of the back besides.
Source: Wu et al. 2018, Stanza, arXiv:1812.10624; `strategies.layer_separation` has the algorithm and who asks whom.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rubato.data.randomness import seed_all
from rubato.engine.comm import Communicator
from rubato.engine.first import first_of
from rubato.engine.front import Front
from rubato.engine.pending import Messages, Waited
from rubato.engine.replicas import Replicas
from rubato.engine.state import TrainingState
from rubato.errors import GenerationLost, ModelError, SpecMismatch
from rubato.strategies.cut_format import FORMATS, empty_packed, pack, unpack
from rubato.strategies.layer_separation import Roles
from rubato.strategies.modules import modules_by_size
from rubato.strategies.peers import Collectives, Group, split
from rubato.strategies.sizes import cut, cut_format
from rubato.strategies.sums import sum_directly
from rubato.wire.spec import JobSpec

_FORWARD, _BACKWARD, _DONE = range(3)
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_DIMENSIONS = 8
_FIXED = 10
_HEAD = _FIXED + _DIMENSIONS
"""Kind, call, type, dimensions, whether a gradient is wanted, where its samples begin, autocast's type or -1, their
weight, whether the module is in training mode, and how it is packed; then the shape."""

Told = list[tuple[float | None, float]]
Forward = Callable[[torch.Tensor], torch.Tensor]
Adds = Callable[[Collectives, torch.Tensor], torch.Tensor]


class Separation:
    """What one worker does of the rounds.

    Args:    replicas: hold the round's beginning, and step the optimizers.
    Raises:  ModelError: there is no module at the cut, or it shares parameters with what comes before.
    """

    def __init__(self, spec: JobSpec, state: TrainingState, replicas: Replicas) -> None:
        assert spec.local_updates.cut is not None
        self._seed, self._state, self._replicas = spec.seed, state, replicas
        self._format = spec.local_updates.cut_format
        self._back = _module_of(state, spec.local_updates.cut)
        _check_not_compiled(state)
        behind = {id(one) for one in self._back.parameters()}
        before = {id(one) for name, one in _outside(state, self._back)}
        if behind & before:
            raise SpecMismatch(
                f"local_updates.cut: {spec.local_updates.cut} shares parameters with layers outside of it, and they "
                "train on different workers: cut behind what is shared"
            )
        named = [(name, one) for name, one in state.named_parameters() if one.requires_grad]
        front = [(name, one) for name, one in named if id(one) not in behind]
        self._kept = [one for _, one in named if id(one) in behind]
        """Parameters of the back."""
        if not front or not self._kept:
            raise SpecMismatch(
                f"local_updates.cut: {spec.local_updates.cut} has {'all' if self._kept else 'none'} of the parameters "
                "that are trained: cut elsewhere, or leave layer_separation out"
            )
        inner = {id(module) for module in self._back.modules()}
        buffers = [one for one in state.buffers if id(one.module) not in inner]
        self._has_order = len(buffers) < len(state.buffers)
        """Whether the back has buffers, to which it matters who comes first."""
        self._front = Front(state, replicas, front, buffers, spec.local_updates.front_format)
        self._device = front[0][1].device
        self._calls = itertools.count()
        self.waited = Waited()
        self._unconfirmed = 0
        self._is_owed = False
        """Whether the keeper is to say that it has made an update."""
        self.lost: GenerationLost | None = None
        """A member was lost while the program computed: it goes on to the end of its batch with what is here, which
        counts nothing, and hears nothing of it."""
        self.told: Told = []
        """Loss and weight of each part of the round, where this worker leads it."""
        self._said: list[torch.Tensor] = []
        """The same as the others told it: whether there is a loss, the loss, and its weight."""
        self.helped = (0, 0)
        """Generation and step of the last round in which this worker has done its part."""
        self.weight: Callable[[], float] = lambda: 1.0
        """Of the samples whose gradient is computed now."""
        self.begins: Callable[[], int] = lambda: 0
        """Which piece they begin with."""
        self.stage: Callable[[str], None] = lambda stage: None
        """Takes word of what is waited for."""

    @property
    def is_training(self) -> bool:
        """Whether the module at the cut is in training mode."""
        return self._back.training

    is_replay = False
    """Of updates in a recorded order; these have none."""

    def begin(self) -> None:
        """A round begins, or begins again."""
        self.told, self._said = [], []
        self._unconfirmed, self._is_owed, self.lost = 0, False, None

    def go_back(self) -> None:
        """Parameters are those of the round's beginning; the engine puts back all else."""
        self._replicas.go_back()

    # --- a worker that computes the front -----------------------------------------------------------------------------

    @staticmethod
    def share(pieces: range, index: int, count: int) -> range:
        """The part of an update's pieces that one of `count` others computes."""
        low, high = cut(len(pieces), count)[index]
        return pieces[low:high]

    @contextmanager
    def asking(self, comm: Communicator, keeper: int) -> Iterator[None]:
        """Meanwhile the back is computed by another worker."""
        anchor = torch.zeros((), requires_grad=True)  # so that there is a backward pass where the front is frozen
        own = self._back.forward

        def forward(*inputs: Any, **named: Any) -> torch.Tensor:
            if named or len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor) or inputs[0].dtype not in _DTYPES:
                raise ModelError(
                    "the module at local_updates.cut takes one tensor of floating-point numbers, and nothing else: it "
                    "is computed by another worker"
                )
            answer: torch.Tensor
            if self.lost is not None:
                answer = own(inputs[0])
                return answer
            link = self, comm, keeper, own, torch.is_grad_enabled()
            answer = _Ask.apply(inputs[0], anchor, link)  # type: ignore[no-untyped-call]
            return answer

        patched = vars(self._back).get("forward")
        vars(self._back)["forward"] = forward
        try:
            yield
        finally:
            del vars(self._back)["forward"]  # that of its class is there again
            if patched is not None:
                vars(self._back)["forward"] = patched

    def ask(self, comm: Communicator, keeper: int, kind: int, call: int, tensor: torch.Tensor, **told: float) -> Any:
        """Send a tensor, and get the one that answers it."""
        self.stage("exchange")
        self.wait_updated(comm, keeper)
        self.send(comm, keeper, kind, call, tensor, **told)
        came = self._receive(comm, keeper)
        self.stage("compute")
        return came.to(self._device)

    def send(self, comm: Communicator, keeper: int, kind: int, call: int, tensor: torch.Tensor, **told: float) -> None:
        """Send a tensor, and what is to be known of it."""
        used = FORMATS[int(told.get("packed", 0))]
        head = _head(kind, call, tensor, **told)
        comm.start_apart(keeper, [], [head, pack(tensor, used).cpu()] if tensor.numel() else [head])

    def packing(self, dtype: torch.dtype, *, goes_in: bool) -> float:
        """How `send` is to pack a tensor.

        Args:    goes_in: whether it goes into the module at the cut.
        """
        return float(FORMATS.index(cut_format(self._format, dtype.itemsize, goes_in=goes_in)))

    def tell_done(self, comm: Communicator, keeper: int, loss: float | None, weight: float) -> None:
        """This worker's part of an update was gone through."""
        self.wait_updated(comm, keeper)
        told = torch.tensor([float(loss is not None), loss or 0.0, weight], dtype=torch.float64)
        self.send(comm, keeper, _DONE, 0, told)
        self._is_owed = True

    def wait_updated(self, comm: Communicator, keeper: int) -> None:
        """Until the keeper has made the update that this worker has told of last."""
        if self._is_owed:
            self._receive(comm, keeper)
            self._is_owed = False

    def update(self, comm: Communicator, others: Sequence[int], weight: float) -> None:
        """Sum the gradients of the front over all that compute it, and step the optimizers.

        Args:    others: their ranks, this one's among them.  weight: of this worker's samples; 0: it had none.
        """
        if any(one.grad is not None for one in self._kept):
            raise ModelError(
                "the loss depends on parameters behind local_updates.cut other than by calling that module, which "
                "another worker has: leave that out (a penalty on weights, say: use weight_decay), or layer_separation"
            )
        self._front.update(self._sum(comm, others, self._front.gradients(weight), self._front.sum))

    def _sum(self, comm: Communicator, ranks: Sequence[int], vector: torch.Tensor, add: Adds) -> torch.Tensor:
        if len(ranks) == 1:
            return vector
        with self.waited:
            total = add(Group(comm, ranks), vector)
        # Whoever has come here has received what it was sent in the update before.
        comm.forget(self._unconfirmed)
        self._unconfirmed = comm.sent
        return total

    def tell_front(self, comm: Communicator, keeper: int) -> None:
        """Behind the last update, by one of them: parameters, buffers, and what the optimizers keep."""
        comm.start_apart(keeper, [], [self._front.pack()])

    # --- a keeper ----------------------------------------------------------------------------------------------------

    def keep(self, comm: Communicator, roles: Roles, updates: int, step: int) -> None:
        """A round with others.

        Raises:  GenerationLost: one was lost.
        """
        leader, *more = roles.keepers
        for _ in range(updates):
            self._keep_update(comm, roles, step)
        if comm.rank != leader:
            comm.start_apart(leader, [], [torch.cat(self._said)])
            return
        packed = self._front.empty_packed()
        with self.waited:
            comm.start_apart(roles.front[-1], [packed], []).wait()
        self._front.take(packed)
        for keeper in more:
            said = torch.empty(3 * updates * len(roles.asked_by(keeper)), dtype=torch.float64)
            with self.waited:
                comm.start_apart(keeper, [said], []).wait()
            self._said += said.view(-1, 3)
        told = [one.tolist() for one in self._said]
        self.told = [(loss if has_loss else None, weight) for has_loss, loss, weight in told if weight > 0]

    def _keep_update(self, comm: Communicator, roles: Roles, step: int) -> None:
        """Forward passes as they are asked for, or in turn; backward passes in the order of ranks."""
        others = roles.asked_by(comm.rank)
        turns, told = list(others), {}
        sums: list[torch.Tensor | None] = [None] * len(self._kept)
        graphs: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        gradients: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        awaited = {rank: _await(comm, rank) for rank in others}
        while turns:
            heard = turns[:1] if self._has_order else awaited
            with self.waited:
                rank = first_of({rank: awaited[rank][0] for rank in heard})
            head = awaited.pop(rank)[1]
            tensor = self._receive(comm, rank, head)
            kind, call = int(head[0]), int(head[1])
            if kind == _DONE:
                turns.remove(rank)
                told[rank] = tensor
            elif kind == _FORWARD:
                x = tensor.to(self._device).requires_grad_(bool(head[4]))
                seed_all(self._seed, step, int(head[5]))
                if self._back.training != bool(head[8]):
                    self._back.train(bool(head[8]))
                with torch.set_grad_enabled(bool(head[4])), _autocast(self._device, int(head[6])):
                    y = self._back(x.clone() if head[4] else x)  # which it may change in place
                if head[4]:
                    graphs[rank, call] = x, y
                self._reply(comm, rank, call, y)
                awaited[rank] = _await(comm, rank)
                if self._has_order:
                    turns.append(turns.pop(0))
            else:
                gradients[rank] = head, tensor
            while turns and turns[0] in gradients:
                first = turns.pop(0)
                turns.append(first)
                head, tensor = gradients.pop(first)
                x, y = graphs.pop((first, int(head[1])))
                trained = [at for at, one in enumerate(self._kept) if one.requires_grad]
                wanted = [x, *(self._kept[at] for at in trained)]
                found = torch.autograd.grad(y, wanted, tensor.to(self._device), allow_unused=True)
                self._reply(comm, first, int(head[1]), torch.zeros_like(x) if found[0] is None else found[0])
                awaited[first] = _await(comm, first)
                weight = float(head[7])
                for at, one in zip(trained, found[1:], strict=True):
                    if one is not None and weight > 0:  # nan times 0 is nan
                        added = one.to(torch.promote_types(one.dtype, torch.float32)) * weight
                        sums[at] = added if (so_far := sums[at]) is None else so_far.add_(added)
        self._said += (told[rank] for rank in others)
        self._step_back(comm, roles, sums, sum(float(told[rank][2]) for rank in others))
        for rank in others:
            self.send(comm, rank, _DONE, 0, torch.empty(0))

    def _step_back(self, comm: Communicator, roles: Roles, sums: Sequence[torch.Tensor | None], weights: float) -> None:
        if len(roles.keepers) > 1:
            sums, weights = self._sum_of_keepers(comm, roles, sums, weights)
        if weights > 0 and any(total is not None for total in sums):
            for one, total in zip(self._kept, sums, strict=True):
                one.grad = None if total is None else total.div_(weights).to(one.dtype)
            self._replicas.update(weights)

    def _sum_of_keepers(
        self, comm: Communicator, roles: Roles, sums: Sequence[torch.Tensor | None], weights: float
    ) -> tuple[list[torch.Tensor | None], float]:
        """Gradients, which of them there are, and weights, added up over the keepers."""
        dtype = functools.reduce(torch.promote_types, (one.dtype for one in self._kept), torch.float32)
        own = [torch.zeros_like(one) if total is None else total for one, total in zip(self._kept, sums, strict=True)]
        told = torch.tensor([weights, *(float(total is not None) for total in sums)], dtype=dtype, device=self._device)
        vector = torch.cat([told, *(one.to(dtype).flatten() for one in own)])
        whole = self._sum(comm, roles.keepers, vector, sum_directly)
        weights, *found = whole[: len(told)].tolist()
        parts = split(whole[len(told) :], [one.numel() for one in self._kept])
        return [
            part.view_as(one) if is_there else None
            for part, one, is_there in zip(parts, self._kept, found, strict=True)
        ], weights

    def _reply(self, comm: Communicator, rank: int, call: int, tensor: torch.Tensor) -> None:
        self.send(comm, rank, _FORWARD, call, tensor, packed=self.packing(tensor.dtype, goes_in=False))

    def _receive(self, comm: Communicator, rank: int, head: torch.Tensor | None = None) -> torch.Tensor:
        """A tensor that another one sends.

        Args:    head: what was told of it; None: that is to come.
        """
        if head is None:
            messages, head = _await(comm, rank)
            with self.waited:
                messages.wait()
        shape = torch.Size(int(one) for one in head[_FIXED : _FIXED + int(head[3])])
        dtype, used = _DTYPES[int(head[2])], FORMATS[int(head[9])]
        if not shape.numel():
            return torch.empty(shape, dtype=dtype)
        packed = empty_packed(shape, dtype, used)
        with self.waited:
            comm.start_apart(rank, [packed], []).wait()
        return unpack(packed, shape, dtype, used)


class _Ask(torch.autograd.Function):
    """The back, computed by the keeper: (b, ...) -> (b, ...)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, anchor: torch.Tensor, link: tuple[Separation, Communicator, int, Forward, bool]
    ) -> torch.Tensor:
        separation, comm, keeper, own, wants = link
        ctx.link, ctx.call, ctx.like = link, next(separation._calls), (x.shape, x.dtype, x.device)
        cast = torch.is_autocast_enabled(x.device.type)
        kind = _DTYPES.index(torch.get_autocast_dtype(x.device.type)) if cast else -1
        told = {"wants": float(wants), "begins": float(separation.begins()), "cast": float(kind)}
        told["training"] = float(separation.is_training)
        told["packed"] = separation.packing(x.dtype, goes_in=True)
        try:
            answer: torch.Tensor = separation.ask(comm, keeper, _FORWARD, ctx.call, x, **told)
        except GenerationLost as error:
            separation.lost = error
            with torch.no_grad():
                answer = own(x)
        return answer

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, None]:
        separation, comm, keeper, *_ = ctx.link
        shape, dtype, device = ctx.like
        came = torch.zeros(shape, dtype=dtype, device=device)
        if separation.lost is None:
            try:
                told = {"weight": separation.weight(), "packed": separation.packing(gradient.dtype, goes_in=False)}
                came = separation.ask(comm, keeper, _BACKWARD, ctx.call, gradient, **told)
            except GenerationLost as error:
                separation.lost = error
        return (came if ctx.needs_input_grad[0] else None), torch.zeros(()), None


def separation_of(spec: JobSpec, state: TrainingState, replicas: Replicas | None) -> Separation | None:
    """That of a spec that separates layers."""
    is_on = replicas is not None and spec.local_updates.method == "layer_separation"
    return Separation(spec, state, replicas) if is_on and replicas is not None else None


def _module_of(state: TrainingState, path: str) -> nn.Module:
    found = []
    for name, model in state.models.items():
        inner = path.removeprefix(f"{name}.") if name else path
        if inner in dict(model.named_modules()) and inner:
            found.append(model.get_submodule(inner))
    if len(found) == 1:
        return found[0]
    trained = [(name, one) for name, one in state.named_parameters() if one.requires_grad and "." in name]
    owners = ((name.rpartition(".")[0], one.numel()) for name, one in trained)
    known = modules_by_size(owners, depth=1 if "" in state.models else 2)
    raise SpecMismatch(
        f"local_updates.cut: {'several models have' if found else 'no model has'} a module {path!r}; there are {known},"
        " and those inside of them, as model.named_modules() tells: take the one with most of them"
    )


def _check_not_compiled(state: TrainingState) -> None:
    for model in state.models.values():
        for module in model.modules():
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
                raise SpecMismatch(
                    "local_updates.method: with layer_separation a model asks another worker for a part of it, and a "
                    "compiled one does not: leave torch.compile out, or that"
                )


def _outside(state: TrainingState, back: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of all modules that are not in the back."""
    inner = {id(module) for module in back.modules()}
    for model in state.models.values():
        for path, module in model.named_modules():
            if id(module) not in inner:
                yield from ((f"{path}.{key}", one) for key, one in module.named_parameters(recurse=False))


@contextmanager
def _autocast(device: torch.device, kind: int) -> Iterator[None]:
    if kind < 0:
        yield
        return
    with torch.autocast(device.type, dtype=_DTYPES[kind]):
        yield


def _head(
    kind: int,
    call: int,
    tensor: torch.Tensor,
    *,
    wants: float = 0.0,
    begins: float = 0.0,
    cast: float = -1.0,
    weight: float = 1.0,
    training: float = 1.0,
    packed: float = 0.0,
) -> torch.Tensor:
    if tensor.dim() > _DIMENSIONS:
        raise ModelError(f"the module at local_updates.cut has a tensor of more than {_DIMENSIONS} dimensions")
    shape = [float(one) for one in tensor.shape] + [0.0] * (_DIMENSIONS - tensor.dim())
    fixed = [float(kind), float(call), float(_DTYPES.index(tensor.dtype)), float(tensor.dim())]
    return torch.tensor([*fixed, wants, begins, cast, weight, training, packed, *shape], dtype=torch.float64)


def _await(comm: Communicator, rank: int) -> tuple[Messages, torch.Tensor]:
    head = torch.empty(_HEAD, dtype=torch.float64)
    return comm.start_apart(rank, [head], []), head
