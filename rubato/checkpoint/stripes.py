"""Tensors as files: every worker writes one stripe of the state, readers put the stripes together.

All tensors of a state, laid end to end, are cut into `count` stripes of equal bytes, at element bounds. A stripe is a
safetensors file of flat slices; the slice `7@4096` begins at element 4096 of tensor 7. Where the cuts lie follows from
the layout and the count alone: workers need not talk to divide the work, and any of them can write a dead one's part.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from rubato.checkpoint.files import FileRecord, write_file
from rubato.checkpoint.layout import byte_view, dtype_of, empty_like_layout, layout, numel_of, raw_bytes
from rubato.errors import CheckpointCorrupt

DOCUMENT_NAME = "state.json"

_SLICE_NAME = re.compile(r"(\d+)@(\d+)")

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""dtypes by their name in a safetensors header; slices of all others are stored as bytes."""


class Slice(NamedTuple):
    """Elements `start` to `stop` of the flattened tensor of that index."""

    tensor: int
    start: int
    stop: int


@dataclass(frozen=True)
class Stripe:
    """The content of one stripe file, ready to be written while training changes the tensors it came from."""

    index: int
    count: int
    slices: tuple[Slice, ...]
    data: tuple[torch.Tensor, ...]
    """Flat, one for each slice."""

    @property
    def name(self) -> str:
        """Of its file."""
        return f"stripe-{self.index:05d}-of-{self.count:05d}.safetensors"

    def write(self, folder: Path) -> FileRecord:
        """Write the file. Makes the folder.

        Raises:
            CheckpointError: the storage refused; no file is left.
        """
        return write_file(folder / self.name, _safetensors(self.slices, self.data))


def cut(entries: Sequence[dict[str, Any]], index: int, count: int) -> list[Slice]:
    """The slices of stripe `index` of `count`, in order; none of them is empty."""
    if not 0 <= index < count:
        raise ValueError(f"stripe {index} is not in 0..{count - 1}")
    numels = [numel_of(entry) for entry in entries]
    widths = [dtype_of(entry).itemsize for entry in entries]
    ends = list(accumulate(numel * width for numel, width in zip(numels, widths, strict=True)))
    total = ends[-1] if ends else 0

    def position(byte: int) -> tuple[int, int]:
        """(tensor, element) of a byte, rounded down to an element."""
        tensor = bisect_right(ends, byte)
        if tensor == len(ends):
            return tensor, 0
        return tensor, (byte - (ends[tensor] - numels[tensor] * widths[tensor])) // widths[tensor]

    first, last = position(total * index // count), position(total * (index + 1) // count)
    slices = []
    for tensor in range(first[0], min(last[0] + 1, len(ends))):
        start = first[1] if tensor == first[0] else 0
        stop = last[1] if tensor == last[0] else numels[tensor]
        if start < stop:
            slices.append(Slice(tensor, start, stop))
    return slices


def write_stripe(folder: Path, index: int, count: int, tensors: Sequence[torch.Tensor]) -> FileRecord:
    """Write stripe `index` of `count` of the tensors, which may lie on any device. Makes the folder.

    Raises:
        CheckpointError: the storage refused; no file is left.
    """
    return _stripe(index, count, tensors).write(folder)


def copy_stripe(index: int, count: int, tensors: Sequence[torch.Tensor]) -> Stripe:
    """Copy what belongs to stripe `index` of `count` to the host's memory, to be written later, as by a thread.

    This is all of a checkpoint that training waits for: 1/count of the state's bytes.
    """
    stripe = _stripe(index, count, tensors)
    return replace(stripe, data=tuple(data.to("cpu", copy=True) for data in stripe.data))


def _stripe(index: int, count: int, tensors: Sequence[torch.Tensor]) -> Stripe:
    # Wide elements first keeps every slice aligned to its element in the file, as readers that map it want.
    slices = sorted(cut(layout(tensors), index, count), key=lambda piece: (-tensors[piece.tensor].itemsize, piece))
    data = (tensors[piece.tensor].detach().reshape(-1)[piece.start : piece.stop] for piece in slices)
    return Stripe(index, count, tuple(slices), tuple(data))


def read_stripes(folder: Path, entries: Sequence[dict[str, Any]], names: Sequence[str]) -> list[torch.Tensor]:
    """Put the tensors of a layout together from stripe files, on the CPU.

    Raises:
        CheckpointCorrupt: a file cannot be read, or the files do not hold every element exactly once.
    """
    tensors = empty_like_layout(entries)
    covered: list[list[tuple[int, int]]] = [[] for _ in entries]
    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118
                    piece = _place(tensors, key, file.get_tensor(key), f"{name} of checkpoint {folder.name}")
                    covered[piece.tensor].append((piece.start, piece.stop))
        except (OSError, SafetensorError) as error:
            raise CheckpointCorrupt(f"{name} of checkpoint {folder.name} cannot be read: {error}") from error
    for index, (tensor, intervals) in enumerate(zip(tensors, covered, strict=True)):
        end = 0
        for start, stop in [*sorted(intervals), (tensor.numel(), tensor.numel())]:
            if start != end:
                what = "missing" if start > end else "there twice"
                raise CheckpointCorrupt(
                    f"checkpoint {folder.name}: elements {min(start, end)} to {max(start, end)} of tensor {index} are "
                    f"{what} in its {len(names)} stripe files"
                )
            end = stop
    return tensors


def write_document(folder: Path, document: dict[str, Any], entries: Sequence[dict[str, Any]]) -> FileRecord:
    """Write the state document and the layout of its tensors as `state.json`. Makes the folder.

    Raises:
        CheckpointError: the storage refused.
    """
    text = json.dumps({"layout": list(entries), "document": document}, separators=(",", ":"), allow_nan=False)
    return write_file(folder / DOCUMENT_NAME, [text.encode()])


def read_document(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document and the layout that `write_document` wrote.

    Raises:
        CheckpointCorrupt: the file cannot be read.
    """
    try:
        data = json.loads((folder / DOCUMENT_NAME).read_bytes())
        return data["document"], data["layout"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{DOCUMENT_NAME} of checkpoint {folder.name} cannot be read: {error!r}") from error


def _safetensors(slices: Sequence[Slice], data: Sequence[torch.Tensor]) -> Iterator[bytes | memoryview]:
    """The file in pieces: length of the header, header, data. By hand, because the library wants all bytes at once."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for piece, dtype in zip(slices, (content.dtype for content in data), strict=True):
        size = (piece.stop - piece.start) * dtype.itemsize
        name = _NAMES.get(dtype)
        header[f"{piece.tensor}@{piece.start}"] = {
            "dtype": name or "U8",
            "shape": [piece.stop - piece.start if name else size],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for content in data:
        yield byte_view(content)


def _place(tensors: Sequence[torch.Tensor], key: str, data: torch.Tensor, where: str) -> Slice:
    """Copy a slice of a file to its place."""
    match = _SLICE_NAME.fullmatch(key)
    if match is None or int(match[1]) >= len(tensors):
        raise CheckpointCorrupt(f"{where} has a slice {key!r}, which is none of this state's {len(tensors)} tensors")
    index, start = int(match[1]), int(match[2])
    tensor = tensors[index]
    if _NAMES.get(tensor.dtype, "U8") != _NAMES.get(data.dtype) or data.dim() != 1:
        raise CheckpointCorrupt(f"{where}: slice {key!r} is {data.dtype}, the layout says {tensor.dtype}")
    source = raw_bytes(data)
    begin, end = start * tensor.itemsize, start * tensor.itemsize + source.numel()
    target = raw_bytes(tensor)
    if end > target.numel() or end % tensor.itemsize:
        raise CheckpointCorrupt(f"{where}: slice {key!r} reaches beyond the {tensor.numel()} elements of its tensor")
    target[begin:end] = source
    return Slice(index, start, end // tensor.itemsize)
