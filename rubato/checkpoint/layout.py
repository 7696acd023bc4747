"""The layout of a list of tensors: types and shapes, as JSON, and their bytes in order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rubato.errors import CheckpointCorrupt


def layout(tensors: Iterable[torch.Tensor]) -> list[dict[str, Any]]:
    """{dtype, shape} of each tensor, as plain JSON types."""
    return [{"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)} for tensor in tensors]


def empty_like_layout(entries: Sequence[dict[str, Any]]) -> list[torch.Tensor]:
    """Uninitialised tensors of the layout.

    Raises:
        CheckpointCorrupt: an entry that is none.
    """
    return [torch.empty(shape_of(entry), dtype=dtype_of(entry)) for entry in entries]


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: object) -> torch.dtype:
    """The dtype of that name.

    Raises:
        CheckpointCorrupt: there is none.
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise CheckpointCorrupt(f"{name!r} is not a dtype of torch {torch.__version__}")
    return dtype


def dtype_of(entry: dict[str, Any]) -> torch.dtype:
    """The dtype of a layout entry."""
    return dtype_named(entry.get("dtype"))


def shape_of(entry: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a layout entry."""
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise CheckpointCorrupt(f"{shape!r} is not a shape")
    return tuple(shape)


def numel_of(entry: dict[str, Any]) -> int:
    """Elements of a layout entry."""
    return math.prod(shape_of(entry))


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in logical order, little-endian: a flat uint8 tensor on its device, a view where possible."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def bytes_tensor(data: bytes | memoryview) -> torch.Tensor:
    """A flat uint8 tensor with a copy of the bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The same bytes as a buffer in the host's memory, for hashing and writing."""
    return memoryview(raw_bytes(tensor).cpu().numpy())  # type: ignore[arg-type]
