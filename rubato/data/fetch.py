"""Rows of a map-style dataset, read one by one under their own seed and collated into fresh tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from rubato.data.randomness import seed_all
from rubato.errors import ModelError

Collate = Callable[[list[Any]], Any]

ALIGNMENT_BYTES = 64
"""Where torch's own CPU allocations begin. Vector kernels peel an unaligned head off, which changes the order of their
sums: the same rows at another alignment give other bits."""


def validate_dataset(dataset: Any) -> int:
    """Check that the dataset can be read by index, and return its number of samples.

    Raises:
        ModelError: it cannot; the message says what to do.
    """
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        raise ModelError(
            f"{kind} is an IterableDataset: where its readers stand can neither be saved nor taken over from a lost "
            "worker. Give a Dataset with __len__ and __getitem__, or rubato.data.ShardedStream(shards, open), which "
            "opens each shard at a recorded offset."
        )
    for method, example in (("__getitem__", "dataset[3]"), ("__len__", "len(dataset)")):
        if not hasattr(type(dataset), method):
            raise ModelError(
                f"dataset is {_article(kind)} without {method}: {example} must work. Give a torch.utils.data.Dataset, "
                "a list, or any object with __len__ and __getitem__; pass the dataset itself, not a DataLoader."
            )
    try:
        num_samples = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise ModelError(f"len() of the {kind} failed ({error}); it must be the number of samples") from error
    if num_samples == 0:
        raise ModelError(f"the {kind} has no samples; check the path or the filter it reads with")
    return num_samples


def fetch(dataset: Any, ids: Sequence[int], *, collate: Collate | None, seed: int, epoch: int) -> Any:
    """Read the samples and collate them.

    Before each sample every generator is seeded by (seed, epoch, sample id): augmentation is a function of these, and
    not of who reads the sample or of its neighbours. The generators are left wherever the last sample put them.

    Args:    ids: sample ids.  collate: list of samples -> batch; None: `torch.utils.data.default_collate`.
    Returns: the batch; its tensors are fresh, never slices of something larger.
    Raises:  whatever the dataset raises, with a note that names the sample.
    """
    rows = []
    for sample in ids:
        seed_all(seed, "sample", epoch, sample)
        try:
            rows.append(dataset[sample])
        except Exception as error:
            error.add_note(f"while reading sample {sample} of the {type(dataset).__name__} (epoch {epoch})")
            raise
    return collate_rows(rows, collate, f"ids {', '.join(map(str, ids[:3]))}, ...")


def collate_rows(rows: list[Any], collate: Collate | None, which: str) -> Any:
    """Make a batch of samples; its tensors are fresh, never slices of something larger.

    Raises:  whatever `collate` raises, with a note that names the samples by `which`.
    """
    try:
        batch = (collate or default_collate)(rows)
    except Exception as error:
        error.add_note(
            f"while collating {len(rows)} samples, {which}; samples of different shapes need `run.prepare(collate=...)`"
        )
        raise
    return _freshen(batch)


def _freshen(batch: Any) -> Any:
    """The batch with every tensor in storage of its own; containers are rebuilt only where a tensor was copied."""
    if isinstance(batch, torch.Tensor):
        return batch if _is_fresh(batch) else batch.clone(memory_format=torch.contiguous_format)
    if isinstance(batch, Mapping):
        items = {key: _freshen(value) for key, value in batch.items()}
        if all(items[key] is value for key, value in batch.items()):
            return batch
        return with_values(batch, items)
    if isinstance(batch, (list, tuple)):
        values = [_freshen(value) for value in batch]
        if all(new is old for new, old in zip(values, batch, strict=True)):
            return batch
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*values)
        return type(batch)(values)
    return batch


def with_values(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Mapping[Any, Any]:
    """The same kind of mapping, with other values: what collates may have made one with methods of its own."""
    if not isinstance(batch, MutableMapping):
        return values
    found = copy.copy(batch)
    found.update(values)
    return found


def _is_fresh(tensor: torch.Tensor) -> bool:
    """Whether the tensor fills its storage and begins where an allocation of torch would."""
    if tensor.layout != torch.strided:
        return True
    return (
        tensor.storage_offset() == 0
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        and (tensor.device.type != "cpu" or tensor.data_ptr() % ALIGNMENT_BYTES == 0)
    )


def _article(kind: str) -> str:
    return f"an {kind}" if kind[:1].lower() in "aeiou" else f"a {kind}"
