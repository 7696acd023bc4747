"""Two hashes of training state: a slow one to show, a fast one to compare.

`state_digest`, SHA-256, is what a job's result carries: equal hex, equal bits. `digest64` rides in step headers and
checks joins: it tells honest copies apart from damaged ones, and is no defence against anybody who wants a collision.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch

from rubato.checkpoint.layout import byte_view, dtype_name, raw_bytes
from rubato.checkpoint.tree import encode

ROW_WORDS = 2**16
"""Words that share one weight table. 512 KiB of weights and as much of scratch stay in a core's second-level cache."""

ROWS_AT_ONCE = {"cpu": 1, "cuda": 256}
"""Rows in one pass: on a GPU launches cost, on a CPU cache misses do."""

_WORD_BYTES = 8
_MASK = 2**64 - 1


def state_digest(
    model_params: Iterable[tuple[str, torch.Tensor]],
    buffers: Iterable[tuple[str, torch.Tensor]],
    optimizer_state: Iterable[tuple[int, str, Any]],
) -> str:
    """SHA-256 over parameters, buffers and optimizer state, as 64 hexadecimal digits.

    Every value enters as (name, dtype, shape, little-endian bytes); parameters and buffers in the order given, which
    is that of registration, optimizer state by (parameter index, key). What is no tensor enters in its saved form.
    """
    digest = hashlib.sha256(b"rubato state 1")
    for section, named in (("parameters", model_params), ("buffers", buffers)):
        _add_text(digest, section)
        for name, tensor in named:
            _add(digest, name, tensor)
    _add_text(digest, "optimizer")
    for index, key, value in sorted(optimizer_state, key=lambda item: item[:2]):
        _add(digest, f"{index}.{key}", value)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    _add_text(digest, name)
    if isinstance(value, torch.Tensor):
        tensors = [value]
        _add_text(digest, "tensor")
    else:
        document, tensors = encode(value)
        _add_text(digest, json.dumps(document))
    for tensor in tensors:
        _add_text(digest, dtype_name(tensor.dtype))
        _add_text(digest, ",".join(map(str, tensor.shape)))
        digest.update(byte_view(tensor))


def _add_text(digest: Any, text: str) -> None:
    """Length first, so that no two sequences of texts run into the same bytes."""
    data = text.encode("utf-8", "surrogatepass")
    digest.update(len(data).to_bytes(8, "little") + data)


def digest64(tensors: Iterable[torch.Tensor]) -> int:
    """A signed 64-bit hash of the tensors' bytes in order, computed where they lie.

    The bytes are read as little-endian 64-bit words, each tensor padded with zeros; words form rows of `ROW_WORDS`. A
    row is the wrapping sum of its words times odd weights, the result that of all rows times odd weights. Odd weights
    have inverses modulo 2^64: a change in one word always shows. Exact integers: no order of summation matters.
    About 5 GB/s on one CPU core.
    """
    sums: dict[torch.device, torch.Tensor] = {}
    first_row = 0
    for tensor in tensors:
        words = _words(tensor)
        num_rows = -(-words.numel() // ROW_WORDS)
        if num_rows == 0:
            first_row += 1  # keeps an empty tensor's place, so that moving it shows in what follows
            continue
        part = _sum_rows(words, first_row)
        sums[words.device] = sums[words.device] + part if words.device in sums else part
        first_row += num_rows
    return _signed(sum(int(part) for part in sums.values()))


def _words(tensor: torch.Tensor) -> torch.Tensor:
    raw = raw_bytes(tensor)
    rest = raw.numel() % _WORD_BYTES
    if rest or raw.storage_offset() % _WORD_BYTES:
        padded = torch.zeros(raw.numel() + (-raw.numel() % _WORD_BYTES), dtype=torch.uint8, device=raw.device)
        padded[: raw.numel()] = raw
        raw = padded
    return raw.view(torch.int64)


def _sum_rows(words: torch.Tensor, first_row: int) -> torch.Tensor:
    """The weighted sum of the words' rows, a 0-d tensor on their device."""
    weights = _weights(words.device)
    whole = words.numel() // ROW_WORDS
    at_once = ROWS_AT_ONCE.get(words.device.type, 1)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    rows = words[: whole * ROW_WORDS].view(whole, ROW_WORDS)
    for row in range(0, whole, at_once):
        block = (rows[row : row + at_once] * weights).sum(dim=1)
        total += (block * _mix(first_row + row, len(block), words.device)).sum()
    rest = words[whole * ROW_WORDS :]
    if rest.numel():
        total += (rest * weights[: rest.numel()]).sum() * _mix_one(first_row + whole)
    return total


_WEIGHTS: dict[torch.device, torch.Tensor] = {}


def _weights(device: torch.device) -> torch.Tensor:
    if device not in _WEIGHTS:
        _WEIGHTS[device] = _mix(2**40, ROW_WORDS, device)  # far from any row's number
    return _WEIGHTS[device]


def _mix(first: int, count: int, device: torch.device) -> torch.Tensor:
    """`count` odd pseudo-random int64 weights for the numbers first, first + 1, ..., by the finisher of splitmix64."""
    value = torch.arange(first, first + count, dtype=torch.int64, device=device)
    value = value * _signed(0x9E3779B97F4A7C15)
    value = (value ^ (value >> 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> 27)) * _signed(0x94D049BB133111EB)
    return (value ^ (value >> 31)) | 1


def _mix_one(number: int) -> int:
    """The weight of one number, as `_mix` has it: most tensors are small, and a launch costs more than their sum."""
    value = _signed(number * 0x9E3779B97F4A7C15)
    value = _signed((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9)
    value = _signed((value ^ (value >> 27)) * 0x94D049BB133111EB)
    return (value ^ (value >> 31)) | 1


def _signed(word: int) -> int:
    """The low 64 bits as a signed number."""
    word &= _MASK
    return word - 2**64 if word >= 2**63 else word
