"""Tensors as files: every worker writes one stripe of the state, readers put the stripes together.

All tensors of a state, laid end to end, are cut into `count` stripes of equal bytes, at element bounds. A stripe is a
safetensors file of flat slices; the slice `7@4096` begins at element 4096 of tensor 7. Where the cuts lie follows from
the layout and the count alone: workers need not talk to divide the work, and any of them can write a dead one's part.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch

from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.layout import byte_view, bytes_tensor, dtype_of, empty_like_layout, layout, numel_of, raw_bytes
from rubato.checkpoint.manifest import read_checked
from rubato.checkpoint.storage import Folder
from rubato.errors import CheckpointCorrupt

_DOCUMENT = "state"
"""How names of state documents begin."""
MAX_HEADER_BYTES = 100 * 2**20
"""The limit of the safetensors library."""

_SLICE_NAME = re.compile(r"(\d+)@(\d+)")

SAFETENSORS_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""dtypes by their name in a safetensors header; slices of all others are stored as bytes."""


class Readable(Protocol):
    """Of a folder, what reading takes."""

    @property
    def name(self) -> str:
        """See `Folder`."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """See `Folder`."""
        ...


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

    def write(self, folder: Folder) -> FileRecord:
        """Write the file. Makes the folder.

        Raises:
            CheckpointError: the storage refused; no file is left.
        """
        named = [(f"{piece.tensor}@{piece.start}", data) for piece, data in zip(self.slices, self.data, strict=True)]
        return folder.write(self.name, safetensors_file(named, {"format": "pt"}))


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


def copy_stripe(index: int, count: int, tensors: Sequence[torch.Tensor]) -> Stripe:
    """Copy what belongs to stripe `index` of `count` to the host's memory, to be written later, as by a thread.

    Copies are all of a checkpoint that training waits for: 1/count of the state's bytes a stripe.
    """
    # Wide elements first keeps every slice aligned to its element in the file, as readers that map it want.
    slices = sorted(cut(layout(tensors), index, count), key=lambda piece: (-tensors[piece.tensor].itemsize, piece))
    data = (tensors[piece.tensor].detach().reshape(-1)[piece.start : piece.stop] for piece in slices)
    return Stripe(index, count, tuple(slices), tuple(one.to("cpu", copy=True) for one in data))


def read_stripes(folder: Readable, entries: Sequence[dict[str, Any]], names: Sequence[str]) -> list[torch.Tensor]:
    """Put the tensors of a layout together from stripe files, on the CPU.

    Raises:
        CheckpointCorrupt: a file cannot be read, or the files do not hold every element exactly once.
    """
    tensors = empty_like_layout(entries)
    covered: list[list[tuple[int, int]]] = [[] for _ in entries]
    for name in names:
        where = f"{name} of checkpoint {folder.name}"
        try:
            blocks = _Blocks(folder.read(name))
            for piece in _read_header(blocks, tensors, where):
                target = raw_bytes(tensors[piece.tensor])
                width = tensors[piece.tensor].itemsize
                blocks.fill(target[piece.start * width : piece.stop * width])
                covered[piece.tensor].append((piece.start, piece.stop))
            blocks.end()
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointCorrupt(f"{where} cannot be read: {error}") from error
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


def write_document(folder: Folder, document: dict[str, Any], entries: Sequence[dict[str, Any]]) -> FileRecord:
    """Write the state document and the layout of its tensors as `state-HASH.json`. Makes the folder.

    Unlike stripes, documents of the same step differ, as they hold times that their writer measured. One that an heir,
    or a worker that was taken for lost, writes behind the manifest must not replace the one that counts.

    Raises:
        CheckpointError: the storage refused.
    """
    text = json.dumps({"layout": list(entries), "document": document}, separators=(",", ":"), allow_nan=False).encode()
    return folder.write(f"{_DOCUMENT}-{hashlib.sha256(text).hexdigest()[:16]}.json", [text])


def document_of(names: Iterable[str]) -> str:
    """Which of a checkpoint's files is the document; `state.json`, as it once was called, where none is."""
    return next((name for name in names if name.startswith(_DOCUMENT)), f"{_DOCUMENT}.json")


def read_document(folder: Readable, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document and the layout that `write_document` wrote.

    Raises:
        CheckpointCorrupt: the file cannot be read.
    """
    try:
        data = json.loads(b"".join(folder.read(name)))
        return data["document"], data["layout"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointCorrupt(f"{name} of checkpoint {folder.name} cannot be read: {error!r}") from error


def read_state(folder: Folder, files: Sequence[FileRecord]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The document of a checkpoint of these files, and the tensors it names, on the CPU.

    Raises:
        CheckpointCorrupt: as `read_document` and `read_stripes`; or this machine reads other bytes than were written.
    """
    checked = _Checked(folder, files)
    document, entries = read_document(checked, document_of(file.name for file in files))
    names = [file.name for file in files if file.name.startswith("stripe")]
    return document, read_stripes(checked, entries, names)


class _Checked:
    """The files of a checkpoint, compared with their hashes as they are read."""

    def __init__(self, folder: Folder, files: Sequence[FileRecord]) -> None:
        self.name = folder.name
        self._folder = folder
        self._files = {file.name: file for file in files}

    def read(self, name: str) -> Iterator[bytes]:
        """See `read_checked`."""
        return read_checked(self._folder, self._files[name])


def safetensors_file(
    tensors: Sequence[tuple[str, torch.Tensor]], metadata: dict[str, str]
) -> Iterator[bytes | memoryview]:
    """A safetensors file in pieces: length of the header, header, data; equal input, equal bytes.

    By hand, because the library wants all bytes at once, and orders metadata by chance. Tensors of types that it does
    not know are stored as flat bytes.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for key, tensor in tensors:
        size = tensor.numel() * tensor.itemsize
        name = SAFETENSORS_NAMES.get(tensor.dtype)
        header[key] = {
            "dtype": name or "U8",
            "shape": list(tensor.shape) if name else [size],
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in tensors:
        yield byte_view(tensor)


class _Blocks:
    """A file that comes in blocks, taken in pieces of other sizes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: the file ends before.
        """
        taken = bytearray()
        while len(taken) < count:
            taken += self._next(count - len(taken))
        return bytes(taken)

    def fill(self, target: torch.Tensor) -> None:
        """Copy the next bytes into a flat uint8 tensor; raises as `take` does."""
        at = 0
        while at < target.numel():
            piece = self._next(target.numel() - at)
            target[at : at + len(piece)] = bytes_tensor(piece)
            at += len(piece)

    def end(self) -> None:
        """Refuse what follows."""
        if self._rest or any(self._blocks):
            raise ValueError("there are bytes behind its last tensor")

    def _next(self, at_most: int) -> memoryview:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                raise ValueError("it ends too early")
            self._rest = memoryview(block)
        piece, self._rest = self._rest[:at_most], self._rest[at_most:]
        return piece


def _read_header(blocks: _Blocks, tensors: Sequence[torch.Tensor], where: str) -> list[Slice]:
    """The slices of a file in the order of their bytes, which follow the header without a gap.

    By hand, as it was written: the library maps local files only, and a state should not lie in memory twice.

    Raises:
        ValueError: that is no safetensors file.  CheckpointCorrupt: it is one of another state.
    """
    size = int.from_bytes(blocks.take(8), "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {size} bytes")
    header = json.loads(blocks.take(size))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    placed = []
    for key, entry in header.items():
        try:
            begin, end = map(_natural, entry["data_offsets"])
            shape, dtype = [_natural(length) for length in entry["shape"]], str(entry["dtype"])
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the entry {key!r} of its header is {entry!r}") from error
        placed.append((begin, end, _place(tensors, key, dtype, shape, end - begin, where)))
    at = 0
    for begin, end, _ in sorted(placed):
        if begin != at:
            raise ValueError(f"its tensors lie at {begin} where {at} was expected")
        at = end
    return [piece for _, _, piece in sorted(placed)]


def _natural(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no natural number")
    return value


def _place(tensors: Sequence[torch.Tensor], key: str, dtype: str, shape: Sequence[int], size: int, where: str) -> Slice:
    """Where a slice of a file belongs."""
    match = _SLICE_NAME.fullmatch(key)
    if match is None or int(match[1]) >= len(tensors):
        raise CheckpointCorrupt(f"{where} has a slice {key!r}, which is none of this state's {len(tensors)} tensors")
    index, start = int(match[1]), int(match[2])
    tensor = tensors[index]
    expected = SAFETENSORS_NAMES.get(tensor.dtype, "U8")
    width = tensor.itemsize if tensor.dtype in SAFETENSORS_NAMES else 1
    if dtype != expected or len(shape) != 1 or shape[0] * width != size or size % tensor.itemsize:
        raise CheckpointCorrupt(
            f"{where}: slice {key!r} is {dtype} {list(shape)} in {size} bytes, the layout says {expected}"
        )
    stop = start + size // tensor.itemsize
    if stop > tensor.numel():
        raise CheckpointCorrupt(f"{where}: slice {key!r} reaches beyond the {tensor.numel()} elements of its tensor")
    return Slice(index, start, stop)
