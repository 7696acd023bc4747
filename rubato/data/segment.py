"""One object in a piece of memory without a name: written by one process, mapped by another, gone with its last user.

Nothing has to be tidied up, whoever dies when: there is no file in a folder, and the kernel frees the memory when the
last descriptor is closed and the last mapping is gone. Tensors and numpy arrays lie in it as they are: reading costs no
copy.

    count, sizes...     8 bytes each
    pickle              protocol 5, without the buffers
    buffers             each at a multiple of 64 bytes
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
from collections.abc import Sequence
from typing import Any, cast

import torch

from rubato.data.fetch import ALIGNMENT_BYTES


def write_segment(thing: Any) -> int:
    """Pickle an object into a new segment.

    Returns: a descriptor of it, the caller's to close.
    Raises:  whatever pickling it raises.
    """
    stream = io.BytesIO()
    packer = _Packer(stream)
    packer.dump(thing)
    pieces = [stream.getbuffer(), *(buffer.raw() for buffer in packer.buffers)]
    sizes = [len(piece) for piece in pieces]
    descriptor = _open_segment()
    try:
        _write_at(descriptor, 0, struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes))
        for offset, piece in zip(_offsets(sizes), pieces, strict=True):
            _write_at(descriptor, offset, piece)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_segment(descriptor: int) -> Any:
    """The object in a segment; its tensors are mapped, and what is written to them stays in this process.

    The descriptor stays open, and may be closed at once.
    """
    # Not by `mmap`, which keeps a descriptor open for each batch that user code holds on to.
    size = os.fstat(descriptor).st_size
    storage: Any = torch.UntypedStorage.from_file(f"/dev/fd/{descriptor}", shared=False, nbytes=size)
    view = memoryview(cast(Any, torch.empty(0, dtype=torch.uint8).set_(storage).numpy()))
    (count,) = struct.unpack_from("<Q", view)
    sizes = struct.unpack_from(f"<{count}Q", view, 8)
    pieces = [view[offset : offset + size] for offset, size in zip(_offsets(sizes), sizes, strict=True)]
    return pickle.loads(pieces[0], buffers=pieces[1:])


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins."""
    offsets, at = [], 8 * (1 + len(sizes))
    for size in sizes:
        at = -(-at // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        offsets.append(at)
        at += size
    return offsets


def _open_segment() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rubato")
    with tempfile.TemporaryFile() as file:  # where there is no memfd (macOS): a file that has no name any more
        return os.dup(file.fileno())


def _write_at(descriptor: int, offset: int, data: Any) -> None:
    rest = memoryview(data)
    while rest:  # one call writes at most 2 GiB
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


class _Packer(pickle.Pickler):
    """Takes the bytes of plain tensors out of the pickle; other kinds of tensors go the way that torch gives them."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(stream, protocol=5, buffer_callback=self.buffers.append)

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not torch.Tensor or not _is_plain(thing):
            return NotImplemented
        size = thing.numel() * thing.element_size()
        if thing.storage_offset() == 0 and thing.untyped_storage().nbytes() == size:
            bytes_N, lead, stride = torch.empty(0, dtype=torch.uint8).set_(thing.untyped_storage()), 0, thing.stride()
        else:
            # Of a slice of something larger only the slice; its rows must lie there as they do here.
            lead = thing.data_ptr() % ALIGNMENT_BYTES
            bytes_N = torch.empty(lead + size, dtype=torch.uint8)
            copy = bytes_N[lead:].view(thing.dtype).view(thing.shape).copy_(thing)
            stride = copy.stride()
        buffer = pickle.PickleBuffer(cast(Any, bytes_N.numpy()))
        return _as_tensor, (buffer, thing.dtype, lead // thing.element_size(), tuple(thing.shape), stride)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _as_tensor(
    buffer: Any, dtype: torch.dtype, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    storage = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)
