from __future__ import annotations

import random
from collections import UserDict, namedtuple
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from rubato.data.fetch import fetch, validate_dataset
from rubato.engine.step import to_device
from rubato.errors import ModelError

Pair = namedtuple("Pair", "x y")


class Encoded(UserDict[str, Any]):
    @property
    def length(self) -> int:
        return len(self["ids"])


ROWS = torch.arange(12.0)
ARRAY = np.arange(13.0)


pytestmark = pytest.mark.usefixtures("generators")


class Noisy(Dataset[tuple[torch.Tensor, float, int]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float, int]:
        return torch.randn(3) + float(np.random.rand()), random.random(), index


class Broken(Noisy):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, float, int]:
        raise OSError("disk gone")


def read(dataset: Any, ids: list[int], collate: Any = None, epoch: int = 0) -> Any:
    return fetch(dataset, ids, collate=collate, seed=1, epoch=epoch)


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    noise_a, number_a, ids_a = read(Noisy(), [3, 7, 1])
    noise_b, number_b, _ = read(Noisy(), [1, 3])
    assert ids_a.tolist() == [3, 7, 1]
    assert torch.equal(noise_a[0], noise_b[1])
    assert torch.equal(noise_a[2], noise_b[0])
    assert number_a[0] == number_b[1]


def test_epochs_seeds_and_samples_draw_their_own_numbers() -> None:
    noise, _, _ = read(Noisy(), [3, 4])
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise, read(Noisy(), [3, 4], epoch=1)[0])
    assert not torch.equal(noise, fetch(Noisy(), [3, 4], collate=None, seed=2, epoch=0)[0])


@pytest.mark.parametrize(
    "collate",
    [
        pytest.param(lambda rows: ROWS[2:5], id="a slice"),
        pytest.param(lambda rows: ROWS.reshape(3, 4).t()[1:], id="a transposed view"),
        pytest.param(lambda rows: torch.from_numpy(ARRAY[1:]), id="an unaligned array"),
        pytest.param(lambda rows: torch.ones(1).expand(4), id="an expanded row"),
    ],
)
def test_views_become_fresh_tensors(collate: Any) -> None:
    batch = read(Noisy(), [0, 1], collate)
    assert torch.equal(batch, collate([]))
    assert batch.untyped_storage().nbytes() == batch.numel() * batch.element_size()
    assert batch.storage_offset() == 0
    assert batch.data_ptr() % 64 == 0


def test_containers_keep_their_shape_and_untouched_ones_their_identity() -> None:
    whole = torch.arange(6.0)
    batch = read(Noisy(), [0], lambda rows: {"pair": Pair(whole[1:3], "text"), "list": [whole[2:], 5], "none": None})
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].x.tolist() == [1.0, 2.0]
    assert batch["pair"].x.storage_offset() == 0
    assert batch["list"][1] == 5
    assert batch["none"] is None
    kept: dict[str, Any] = {"x": torch.ones(2), "rest": [1, (2, 3)]}
    assert read(Noisy(), [0], lambda rows: kept) is kept


def test_a_mapping_stays_of_its_kind() -> None:
    """A tokenizer's batch is no dict, and has methods that programs call."""
    whole = torch.arange(6.0)
    batch = read(Noisy(), [0], lambda rows: Encoded(ids=whole[1:3], text="a"))
    assert (type(batch), batch.length, batch["text"]) == (Encoded, 2, "a")
    moved = to_device(batch, torch.device("meta"))
    assert (type(moved), moved["ids"].device.type, moved["text"]) == (Encoded, "meta", "a")
    assert batch["ids"].device.type == "cpu"
    fixed = to_device(MappingProxyType({"x": whole}), torch.device("meta"))
    assert fixed["x"].device.type == "meta"


def test_errors_name_the_sample() -> None:
    with pytest.raises(OSError, match="disk gone") as caught:
        read(Broken(), [4])
    assert "while reading sample 4 of the Broken (epoch 0)" in caught.value.__notes__


def test_errors_of_collating_say_what_to_do() -> None:
    with pytest.raises(RuntimeError) as caught:
        read([torch.ones(2), torch.ones(3)], [0, 1])
    assert "run.prepare(collate=...)" in caught.value.__notes__[-1]


def test_datasets_that_can_be_read_by_index_are_counted() -> None:
    assert validate_dataset(TensorDataset(torch.zeros(5, 2))) == 5
    assert validate_dataset([1, 2]) == 2
    assert validate_dataset(torch.zeros(3)) == 3


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class BadLength(NoLength):
    def __len__(self) -> int:
        raise NotImplementedError("unknown")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), r"IterableDataset: .* or rubato.data.ShardedStream\(shards, open\)"),
        (NoLength(), r"a NoLength without __len__: len\(dataset\) must work"),
        (iter([1]), "without __getitem__"),
        (DataLoader(Noisy()), "not a DataLoader"),
        (BadLength(), "must be the number of samples"),
        ([], "no samples"),
    ],
)
def test_other_datasets_are_refused_with_advice(dataset: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        validate_dataset(dataset)
