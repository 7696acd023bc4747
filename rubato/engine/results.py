"""The results of exchanges as bytes, to give them to a member that missed one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.buffers import aligned
from rubato.engine.entry import Key
from rubato.engine.header import ALIGNMENT, Header
from rubato.engine.reduction import Reduced

_HEAD = struct.Struct(f"<5q{ALIGNMENT - 40}x")


@dataclass(frozen=True)
class Completed:
    """An exchange that this worker completed."""

    key: Key
    result: Reduced | torch.Tensor | None
    """A reduction, or a float64 table in one row; None: told by others (a join), not seen."""


def result_bytes(completed: Completed) -> int:
    """Size of the packed result, in whole cache lines; 0 where there is none."""
    result = completed.result
    if result is None:
        return 0
    if isinstance(result, torch.Tensor):
        return aligned(_HEAD.size + result.numel() * 8)
    vector = sum(chunk.numel() * chunk.element_size() for chunk in result.chunks)
    return aligned(_HEAD.size + vector + sum(len(header.pack()) for header in result.headers) + len(result.integers))


def pack_result(completed: Completed, before: bytes = b"") -> torch.Tensor:
    """A result as a flat uint8 tensor, copied once.

    Args:    before: bytes to begin with.
    Returns: these, and `result_bytes` bytes.
    """
    result = completed.result
    if isinstance(result, torch.Tensor):
        head, tail = _HEAD.pack(1, result.numel() * 8, 0, 0, 0), b""
        vector = [result.contiguous().view(torch.uint8)]
    else:
        assert result is not None
        packed = [header.pack() for header in result.headers]
        vector = [chunk.reshape(-1).contiguous().view(torch.uint8).cpu() for chunk in result.chunks]
        size = len(packed[0]) if packed else 0
        head = _HEAD.pack(0, sum(map(len, vector)), len(packed), size, len(result.integers))
        tail = b"".join(packed) + result.integers
    length = _HEAD.size + sum(map(len, vector)) + len(tail)
    return torch.cat([bytes_tensor(before + head), *vector, bytes_tensor(tail + bytes(aligned(length) - length))])


def unpack_result(data: torch.Tensor, dtype: torch.dtype, device: torch.device) -> Reduced | torch.Tensor:
    """The result of packed bytes, whose vector is used where it lies: at a multiple of 8."""
    kind, body, count, header_size, integers = _HEAD.unpack_from(bytes(data[: _HEAD.size].numpy()))
    at = _HEAD.size
    if kind == 1:
        return data[at : at + body].clone().view(torch.float64)
    vector = data[at : at + body].view(dtype).to(device)
    rest = bytes(data[at + body :].numpy())
    headers = [Header.unpack(rest[index * header_size : (index + 1) * header_size]) for index in range(count)]
    tail = rest[count * header_size : count * header_size + integers]
    return Reduced((vector,), tuple(headers), tail)
