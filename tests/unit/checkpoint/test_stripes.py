from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rubato.checkpoint.layout import layout, raw_bytes
from rubato.checkpoint.storage import LocalFolder
from rubato.checkpoint.stripes import (
    copy_stripe,
    cut,
    document_of,
    read_document,
    read_state,
    read_stripes,
    write_document,
)
from rubato.checkpoint.tree import decode, encode
from rubato.errors import CheckpointCorrupt, CheckpointError

TENSORS = [
    torch.randn(10, 33),
    torch.tensor(3),
    torch.empty(0, 4),
    torch.tensor([True, False, True]),
    torch.tensor([1.0, float("nan"), -0.0]).bfloat16(),
    torch.randn(3, dtype=torch.complex128),
    torch.tensor([1 + 2j]).conj(),
    torch.arange(12, dtype=torch.int16).reshape(3, 4).t(),
    torch.arange(9).to(torch.uint64)[1:6],
    torch.ones(2).to(torch.float8_e5m2),
    torch.nn.Parameter(torch.randn(4)),
    torch.empty(3, 0),
]


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert layout(got) == layout(expected)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(raw_bytes(a), raw_bytes(b))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 2000])
def test_tensors_of_every_kind_come_back_from_their_stripes(tmp_path: Path, count: int) -> None:
    records = [copy_stripe(index, count, TENSORS).write(LocalFolder(tmp_path / "1-5")) for index in range(count)]
    assert_same(
        read_stripes(LocalFolder(tmp_path / "1-5"), layout(TENSORS), [record.name for record in reversed(records)]),
        TENSORS,
    )
    assert len(list((tmp_path / "1-5").iterdir())) == count


def test_the_record_is_that_of_the_file(tmp_path: Path) -> None:
    record = copy_stripe(1, 3, TENSORS).write(LocalFolder(tmp_path))
    path = tmp_path / record.name
    assert (record.bytes, record.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_stripe_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    record = copy_stripe(0, 2, [torch.arange(6.0).reshape(2, 3), torch.arange(5)]).write(LocalFolder(tmp_path))
    loaded = load_file(tmp_path / record.name)
    assert {key: value.tolist() for key, value in loaded.items()} == {"0@0": [0, 1, 2, 3, 4, 5], "1@0": [0]}
    second = copy_stripe(1, 2, [torch.arange(6.0).reshape(2, 3), torch.arange(5)]).write(LocalFolder(tmp_path))
    with safe_open(tmp_path / second.name, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("1@1").tolist() == [1, 2, 3, 4]


def test_a_copied_stripe_keeps_the_state_that_training_goes_on_to_change(tmp_path: Path) -> None:
    tensors = [torch.arange(10.0), torch.arange(4), torch.tensor([1 + 2j, 3j]).conj()]
    before = [tensor.clone() for tensor in tensors]
    stripes = [copy_stripe(index, 2, tensors) for index in range(2)]
    for tensor in tensors:
        tensor.zero_()
    names = [stripe.write(LocalFolder(tmp_path)).name for stripe in stripes]
    assert_same(read_stripes(LocalFolder(tmp_path), layout(before), names), before)


def test_no_tensors_at_all_are_a_state_too(tmp_path: Path) -> None:
    record = copy_stripe(0, 1, []).write(LocalFolder(tmp_path))
    assert read_stripes(LocalFolder(tmp_path), [], [record.name]) == []


layouts = st.lists(
    st.builds(
        lambda dtype, shape: {"dtype": dtype, "shape": shape},
        st.sampled_from(["float32", "int8", "bfloat16", "complex128"]),
        st.lists(st.integers(0, 9), max_size=3),
    ),
    max_size=6,
)


@given(layouts, st.integers(1, 9))
def test_stripes_cover_every_element_once_and_are_even(entries: list[dict[str, Any]], count: int) -> None:
    covered: list[tuple[int, int]] = []
    sizes = []
    widths = {"float32": 4, "int8": 1, "bfloat16": 2, "complex128": 16}
    for index in range(count):
        slices = cut(entries, index, count)
        covered += [(piece.tensor, element) for piece in slices for element in range(piece.start, piece.stop)]
        sizes.append(sum((piece.stop - piece.start) * widths[entries[piece.tensor]["dtype"]] for piece in slices))
    elements = [torch.empty(entry["shape"]).numel() for entry in entries]
    assert covered == [(tensor, element) for tensor, count in enumerate(elements) for element in range(count)]
    assert max(sizes) - min(sizes) <= 2 * 16


def test_a_stripe_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stripe 2 is not in 0\.\.1"):
        cut([], 2, 2)


def test_missing_and_doubled_elements_are_named(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "1-5")
    names = [copy_stripe(index, 2, [torch.arange(10)]).write(folder).name for index in range(2)]
    entries = layout([torch.arange(10)])
    with pytest.raises(CheckpointCorrupt, match="checkpoint 1-5: elements 5 to 10 of tensor 0 are missing in its 1 "):
        read_stripes(folder, entries, names[:1])
    with pytest.raises(CheckpointCorrupt, match="elements 0 to 5 of tensor 0 are missing"):
        read_stripes(folder, entries, names[1:])
    with pytest.raises(CheckpointCorrupt, match="elements 0 to 5 of tensor 0 are there twice"):
        read_stripes(folder, entries, [*names, names[0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"0@3": torch.arange(3)}, "reaches beyond the 5 elements"),
        ({"1@0": torch.arange(3)}, "none of this state's 1 tensors"),
        ({"weight": torch.arange(3)}, "none of this state's 1 tensors"),
        ({"0@0": torch.arange(5.0)}, r"slice '0@0' is F32 \[5\] in 20 bytes, the layout says I64"),
        ({"0@0": torch.zeros(1, 5, dtype=torch.int64)}, "slice '0@0'"),
    ],
)
def test_slices_of_another_state_are_refused(tmp_path: Path, content: dict[str, torch.Tensor], message: str) -> None:
    save_file(content, tmp_path / "stripe")
    with pytest.raises(CheckpointCorrupt, match=message):
        read_stripes(LocalFolder(tmp_path), layout([torch.arange(5)]), ["stripe"])


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100])
def test_a_file_that_cannot_be_read_is_corrupt(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "stripe").write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match=r"stripe of checkpoint .* cannot be read"):
        read_stripes(LocalFolder(tmp_path), [], ["stripe"])


def test_the_document_comes_back_with_the_layout(tmp_path: Path) -> None:
    state = {"lr": float("inf"), 3: (1, torch.ones(2))}
    document, tensors = encode(state)
    record = write_document(LocalFolder(tmp_path), document, layout(tensors))
    assert read_document(LocalFolder(tmp_path), record.name) == (document, layout(tensors))
    assert decode(*read_document(LocalFolder(tmp_path), record.name)[:1], tensors)[3][0] == 1
    (tmp_path / record.name).write_text(json.dumps({"document": 1}))
    with pytest.raises(CheckpointCorrupt, match=record.name):
        read_document(LocalFolder(tmp_path), record.name)


def test_a_document_that_says_something_else_is_another_file(tmp_path: Path) -> None:
    first, other, again = (write_document(LocalFolder(tmp_path), {"seconds": one}, []) for one in (1.0, 2.0, 1.0))
    assert first == again != other
    assert read_document(LocalFolder(tmp_path), first.name) == ({"seconds": 1.0}, [])
    assert document_of(["stripe-00000-of-00001.safetensors", first.name]) == first.name


@pytest.mark.parametrize("which", ["state", "stripe"])
def test_what_is_read_with_other_bytes_than_were_written_is_refused(tmp_path: Path, which: str) -> None:
    """As by a machine with a bad disk or memory, where others read it well."""
    folder, tensors = LocalFolder(tmp_path), [torch.zeros(5)]
    files = [write_document(folder, {"lr": 0.1}, layout(tensors)), copy_stripe(0, 1, tensors).write(folder)]
    assert torch.equal(read_state(folder, files)[1][0], tensors[0])
    (path,) = tmp_path.glob(f"{which}*")
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointCorrupt, match=rf"{path.name} of checkpoint .*"):
        read_state(folder, files)


def test_what_the_document_once_was_called_is_read(tmp_path: Path) -> None:
    record = write_document(LocalFolder(tmp_path), {"step": 5}, [])
    (tmp_path / record.name).rename(tmp_path / "state.json")
    assert read_state(LocalFolder(tmp_path), [replace(record, name="state.json")])[0] == {"step": 5}


def test_storage_that_refuses_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot write stripe-00000-of-00001"):
        copy_stripe(0, 1, TENSORS).write(LocalFolder(tmp_path / "taken"))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
