"""Gradients, buffer changes and touched flags of one microbatch as one flat vector.

    | gradients, parameter by parameter | changes of float buffers | one touched flag a parameter |

Every piece begins at a multiple of 64 bytes. The vector is float32, or float64 where a parameter or a buffer is: no
tensor travels in fewer digits than it has. Where a buffer was not finite there is no change to tell, so its value
travels instead: an inf or nan that somebody put there on purpose stays, a first real value takes its place.
Legend of shapes: L elements of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from rubato.checkpoint.layout import bytes_tensor, raw_bytes
from rubato.engine.buckets import ALIGN, cut, cut_tail
from rubato.engine.shares import total_bytes
from rubato.engine.state import Place
from rubato.errors import ModelError

BUCKET_BYTES = 8 << 20
"""Of the vector, exchanged at once. Small: what is left when a backward pass ends is not overlapped."""
NOTES = 3
"""Numbers that a pass tells of its gradient."""


@dataclass(frozen=True)
class Piece:
    """Where one tensor lies in the vector."""

    start: int
    numel: int
    shape: torch.Size


class FlatLayout:
    """The places of parameters and buffers in the vector: a pure function of the model's registration order.

    Args:    has_notes: passes tell the square of the norm of their gradient along, where `takes_notes` says so.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.Tensor]],
        buffers: Sequence[Place],
        *,
        has_notes: bool = False,
    ) -> None:
        self.parameters = [(name, tensor) for name, tensor in parameters if tensor.requires_grad]
        self._frozen = [(name, tensor) for name, tensor in parameters if not tensor.requires_grad]
        self.float_buffers = [one for one in buffers if one.own.is_floating_point()]
        self.other_buffers = [one for one in buffers if not one.own.is_floating_point()]
        for name, tensor in (*self.parameters, *((one.name, one.own) for one in buffers)):
            if tensor.is_complex():
                raise ModelError(f"{name} is complex; this release trains real tensors: use torch.view_as_real")
            if tensor.layout is not torch.strided:
                raise ModelError(f"{name} has layout {tensor.layout}; this release trains dense tensors only")
        if not self.parameters:
            raise ModelError("the model has no parameter that requires a gradient: there is nothing to train")
        tensors = [tensor for _, tensor in self.parameters]
        self.device = tensors[0].device
        travelling = (*tensors, *(one.own for one in self.float_buffers))
        self.dtype = torch.float64 if any(one.dtype == torch.float64 for one in travelling) else torch.float32
        self.pieces: list[Piece] = []
        end = 0
        for tensor in travelling:
            self.pieces.append(Piece(end, tensor.numel(), tensor.shape))
            end += -(-tensor.numel() // ALIGN) * ALIGN
        last = self.pieces[len(tensors) - 1]
        self.gradients = last.start + last.numel
        """Elements that are gradients: the first of the vector. Whether a step is finite is asked of these only."""
        self.tail = self.pieces[len(tensors)].start if self.float_buffers else end
        """Element at which the gradients end, with their padding, and the changes of buffers begin."""
        self.flags = Piece(end, len(tensors), torch.Size([len(tensors)]))
        self._notes = Piece(end + len(tensors), NOTES if has_notes else 0, torch.Size([NOTES if has_notes else 0]))
        self.takes_notes = False
        """Whether they are taken of the passes that are packed now; equal on all workers."""
        self.length = end + -(-(len(tensors) + self._notes.numel) // ALIGN) * ALIGN
        starts = [piece.start for piece in self.pieces[: len(tensors)]]
        most = BUCKET_BYTES // self.dtype.itemsize
        self.buckets = cut(starts, self.tail, self.length, most)
        """In which the vector is exchanged; the last one holds what is not gradients."""
        if any(one.is_value for one in buffers):  # as large as the gradients, and more
            self.buckets[-1:] = cut_tail(self.tail, self.flags.start, self.length, most)

    def check_frozen(self) -> None:
        """Parameters that have no place in the vector must not be trained: every worker would use its own gradient.

        Raises:
            ModelError: one of them requires a gradient by now; the message says what to do.
        """
        for name, tensor in self._frozen:
            if tensor.requires_grad:
                raise ModelError(
                    f"{name} did not require a gradient when run.steps() began, but does now: let it require one until "
                    "then and freeze it in the first step; what was trainable may be frozen and unfrozen at any step"
                )

    def empty(self) -> torch.Tensor:
        """A vector (L,) of zeros."""
        return torch.zeros(self.length, dtype=self.dtype, device=self.device)

    def _view(self, vector_L: torch.Tensor, piece: Piece) -> torch.Tensor:
        return vector_L[piece.start : piece.start + piece.numel].view(piece.shape)

    def _buffer_pieces(self) -> list[Piece]:
        return self.pieces[len(self.parameters) :]

    def pack(
        self, vector_L: torch.Tensor, buffers_before: Sequence[torch.Tensor], share: float, *, adds: bool = False
    ) -> None:
        """Copy gradients and buffer changes of a microbatch into the vector, and drop the gradients.

        Args:
            share: what the microbatch counts against a full one; 1.0 is not multiplied by.
            adds: add them to what the vector holds; the bits are those of a vector of their own that is added to it.
                Needs a share of 1.0.
        """
        assert share == 1.0 or not adds
        notes = self.take_notes(share)
        touched = [parameter.grad is not None for _, parameter in self.parameters]
        sources, targets = [], []
        for (_, parameter), piece in zip(self.parameters, self.pieces, strict=False):
            gradient = parameter.grad
            view = self._view(vector_L, piece)
            if gradient is None:
                view.add_(0.0) if adds else view.zero_()
            else:
                sources.append(gradient.to_dense() if gradient.layout is not torch.strided else gradient)
                targets.append(view)
            parameter.grad = None
        with torch.no_grad():
            if targets:
                (torch._foreach_add_ if adds else torch._foreach_copy_)(targets, sources)
            if not adds:
                weigh(vector_L[: self.tail], share)
        self.pack_tail(vector_L, buffers_before, touched, notes, share, adds=adds)

    def pack_one(self, vector_L: torch.Tensor, index: int, share: float) -> None:
        """Copy the gradient of one parameter into the vector, as `pack` does; it stays where it is."""
        gradient = self.parameters[index][1].grad
        view = self._view(vector_L, self.pieces[index])
        with torch.no_grad():
            if gradient is None:
                view.zero_()
            elif self.may_add(gradient) and share != 0.0:
                view.copy_(gradient) if share == 1.0 else torch.mul(gradient, share, out=view)
            else:
                view.copy_(gradient.to_dense() if gradient.layout is not torch.strided else gradient)
                weigh(view, share)

    def may_add(self, gradient: torch.Tensor) -> bool:
        """Whether it can be added or multiplied as it is: in the vector's type, and dense."""
        return gradient.dtype == self.dtype and gradient.layout is torch.strided

    def pack_tail(
        self,
        vector_L: torch.Tensor,
        buffers_before: Sequence[torch.Tensor],
        touched: Sequence[bool],
        notes: torch.Tensor,
        share: float,
        *,
        adds: bool = False,
    ) -> None:
        """Copy buffer changes, touched flags and notes of a microbatch into the vector.

        Args:    touched: whether each parameter had a gradient.  notes: see `take_notes`.  share, adds: as in `pack`.
        """
        others = [self._view(vector_L, piece) for piece in (*self._buffer_pieces(), self.flags, self._notes)]
        flags = torch.tensor(touched, dtype=self.dtype, device=self.device)
        changes = [*self._changes(buffers_before), flags, notes]
        with torch.no_grad():
            for view, change in zip(others, changes, strict=True):
                view.add_(change) if adds else view.copy_(change)
            if not adds:
                weigh(vector_L[self.tail : self.flags.start], share)

    def take_notes(self, share: float) -> torch.Tensor:
        """Of a pass whose gradients are there: the square of their norm, what it counts inversely, and that it is one.

        Zeros where none are taken.
        """
        notes = torch.zeros(self._notes.shape, dtype=self.dtype, device=self.device)
        gradients = [parameter.grad for _, parameter in self.parameters if parameter.grad is not None]
        if not self.takes_notes or not gradients or share == 0.0:
            return notes
        dense = [one.to_dense() if one.layout is not torch.strided else one for one in gradients]
        notes[0] = torch.stack(list(torch._foreach_norm(dense, dtype=self.dtype))).square().sum()
        notes[1], notes[2] = 1 / share, 1.0
        return notes

    def notes_of(self, vector_L: torch.Tensor) -> tuple[float, float, float]:
        """Of all passes of a step together, up to one factor."""
        squares, inverse_shares, passes = self._view(vector_L, self._notes).tolist()
        return squares, inverse_shares, passes

    def _changes(self, buffers_before: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """What each float buffer has changed by, in the vector's type; or its value: what was not finite, or is one."""
        for buffer, before in zip(self.float_buffers, buffers_before, strict=True):
            change = buffer.now.detach().to(self.dtype, copy=True)
            yield change if buffer.is_value else change.sub_(torch.where(torch.isfinite(before), before, 0.0))

    def deliver(self, vector_L: torch.Tensor, buffers_before: Sequence[torch.Tensor], *, skip: bool = False) -> None:
        """Give the reduced vector to the model: gradients become views of it, buffers take their mean change.

        Args:    skip: all gradients None instead (a step that is not to count).
        """
        touched = self._view(vector_L, self.flags).tolist()
        with torch.no_grad():
            for (_, parameter), piece, flag in zip(self.parameters, self.pieces, touched, strict=False):
                if flag == 0.0 or skip:
                    parameter.grad = None
                else:
                    view = self._view(vector_L, piece)
                    parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)
        self.put_buffers(vector_L, buffers_before)

    def pack_weights(self, vector: torch.Tensor, instead: Mapping[str, torch.Tensor] | None = None) -> None:
        """Copy the parameters as they are, on any device, into the beginning of a vector.

        Args:    instead: by name, what to copy for a parameter.
        """
        for (name, parameter), piece in zip(self.parameters, self.pieces, strict=False):
            self._view(vector, piece).copy_((instead or {}).get(name, parameter).detach())

    def put_weights(self, vector: torch.Tensor) -> None:
        """The parameters take what `pack_weights` has told of them."""
        with torch.no_grad():
            for (_, parameter), piece in zip(self.parameters, self.pieces, strict=False):
                parameter.copy_(self._view(vector, piece))
        torch.clear_autocast_cache()  # it holds weights as they were

    def pack_values(self, vector_L: torch.Tensor) -> None:
        """Copy the float buffers as they are into a vector."""
        for buffer, piece in zip(self.float_buffers, self._buffer_pieces(), strict=True):
            self._view(vector_L, piece).copy_(buffer.now.detach())

    def put_values(self, vector_L: torch.Tensor) -> None:
        """The float buffers take what `pack_values` has told of them."""
        with torch.no_grad():
            for buffer, piece in zip(self.float_buffers, self._buffer_pieces(), strict=True):
                buffer.put(self._view(vector_L, piece).to(buffer.own.dtype))

    def pack_unchanged(self, vector_L: torch.Tensor, share: float) -> None:
        """Put into a vector of zeros what a pass tells of float buffers that changes none: what travels as a value."""
        with torch.no_grad():
            now = [buffer.now.detach() for buffer in self.float_buffers]
            for piece, change in zip(self._buffer_pieces(), self._changes(now), strict=True):
                self._view(vector_L, piece).copy_(change)
            weigh(vector_L[self.tail : self.flags.start], share)

    def integers(self) -> bytes:
        """What the other buffers hold, one behind the other."""
        return b"".join(bytes(raw_bytes(one.now).cpu().numpy()) for one in self.other_buffers)

    @property
    def integer_bytes(self) -> int:
        """Length of that."""
        return total_bytes([one.own for one in self.other_buffers])

    def put_integers(self, integers: bytes) -> None:
        """The other buffers take what `integers` told of them."""
        at = 0
        for buffer in self.other_buffers:
            own = buffer.own
            size = own.numel() * own.element_size()
            buffer.put(bytes_tensor(integers[at : at + size]).view(own.dtype).view(own.shape))
            at += size

    def put_buffers(
        self,
        vector_L: torch.Tensor,
        buffers_before: Sequence[torch.Tensor],
        onto: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Float buffers take the mean change that a vector tells.

        Args:    onto: what it is added to, where that is not what they held before it.
        """
        places = zip(self.float_buffers, buffers_before, onto or buffers_before, self._buffer_pieces(), strict=True)
        with torch.no_grad():
            for buffer, before, base, piece in places:
                told = self._view(vector_L, piece).to(before.dtype)
                buffer.put(told if buffer.is_value else torch.where(torch.isfinite(before), base, 0.0) + told)

    def untouched(self, vector_L: torch.Tensor) -> set[str]:
        """Names of the parameters that no microbatch of a summed vector had a gradient of."""
        flags = self._view(vector_L, self.flags).tolist()
        return {name for (name, _), flag in zip(self.parameters, flags, strict=True) if flag == 0.0}

    def spoil(self) -> None:
        """Make all gradients infinite: how a GradScaler is told to skip a step, whichever optimizer it is asked for.

        Without gradients it would raise, as it found nothing to look at; and of several optimizers it would let those
        step whose own gradients are finite.
        """
        for _, parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.fill_(math.inf)


def weigh(vector: torch.Tensor, share: float) -> None:
    """Have a vector count as much as its microbatch does."""
    if share == 0.0:
        vector.zero_()  # nan times 0 is nan: the mean over nothing must count nothing
    elif share != 1.0:
        vector.mul_(share)
