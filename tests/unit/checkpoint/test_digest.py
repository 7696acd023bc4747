from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.checkpoint import digest as digest_module
from rubato.checkpoint.digest import ROW_WORDS, digest64, state_digest

MASK = 2**64 - 1


def named(**tensors: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    return list(tensors.items())


BASE: dict[str, Any] = {
    "model_params": named(w=torch.ones(2, 3), b=torch.zeros(3)),
    "buffers": named(mean=torch.ones(2)),
    "optimizer_state": [(0, "exp_avg", torch.ones(2)), (0, "step", 3.0)],
}


def test_equal_state_has_one_digest_of_64_hexadecimal_digits() -> None:
    copy = {key: [(*item[:-1], item[-1]) for item in items] for key, items in BASE.items()}
    assert state_digest(**BASE) == state_digest(**copy)
    assert len(state_digest(**BASE)) == 64
    int(state_digest(**BASE), 16)


def test_the_digest_is_a_promise_that_releases_keep() -> None:
    # Jobs and users compare digests across releases and machines: this value may only change with the header text.
    params = named(w=torch.arange(6, dtype=torch.float32).reshape(2, 3))
    buffers = named(n=torch.tensor(7))
    state = [(0, "step", 3.0), (0, "m", torch.tensor([1.5], dtype=torch.bfloat16))]
    assert state_digest(params, buffers, state) == "e761e9da24f779a8c49f34e082b5956923a643a525bb5009aeb2c529cb5e4e5c"


@pytest.mark.parametrize(
    "change",
    [
        {"model_params": named(w=torch.ones(3, 2), b=torch.zeros(3))},
        {"model_params": named(w=torch.ones(2, 3).int(), b=torch.zeros(3))},
        {"model_params": named(b=torch.zeros(3), w=torch.ones(2, 3))},
        {"model_params": named(w=torch.ones(2, 3), c=torch.zeros(3))},
        {"model_params": named(w=torch.ones(2, 3), b=torch.tensor([0.0, -0.0, 0.0]))},
        {"model_params": named(w=torch.ones(2, 3)), "buffers": named(b=torch.zeros(3), mean=torch.ones(2))},
        {"buffers": []},
        {"optimizer_state": [(1, "exp_avg", torch.ones(2)), (0, "step", 3.0)]},
        {"optimizer_state": [(0, "exp_avg", torch.ones(2)), (0, "step", 3)]},
        {"optimizer_state": [(0, "exp_avg", torch.ones(2)), (0, "step", torch.tensor(3.0))]},
    ],
)
def test_every_part_of_the_state_counts(change: dict[str, Any]) -> None:
    assert state_digest(**(BASE | change)) != state_digest(**BASE)


def test_optimizer_state_is_taken_by_index_and_key_in_any_order() -> None:
    assert state_digest(**(BASE | {"optimizer_state": BASE["optimizer_state"][::-1]})) == state_digest(**BASE)


def test_memory_layout_does_not_count() -> None:
    image = torch.randn(2, 3, 4, 4)
    last = image.contiguous(memory_format=torch.channels_last)
    assert state_digest(named(w=image), [], []) == state_digest(named(w=last), [], [])
    assert digest64([image]) == digest64([last])


def reference(tensors: list[torch.Tensor]) -> int:
    """digest64 as its docstring says it, word by word."""
    weights = digest_module._mix(2**40, ROW_WORDS, torch.device("cpu")).tolist()
    total, row = 0, 0
    for tensor in tensors:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        data += b"\0" * (-len(data) % 8)
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        for start in range(0, max(len(words), 1), ROW_WORDS):
            chunk = words[start : start + ROW_WORDS]
            total += digest_module._mix_one(row) * sum(map(int.__mul__, chunk, weights))
            row += 1
    total &= MASK
    return total - 2**64 if total >= 2**63 else total


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("extra", [0, 1, 5])
@pytest.mark.parametrize("at_once", [1, 2, 256])
def test_the_fast_hash_is_the_one_described(
    rows: int, extra: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(digest_module.ROWS_AT_ONCE, "cpu", at_once)
    generator = torch.Generator().manual_seed(rows)
    big = torch.randint(-(2**62), 2**62, (rows * ROW_WORDS + extra,), generator=generator)
    tensors = [torch.tensor([True]), big, torch.empty(0), torch.ones(3).bfloat16(), big[1:].clone()]
    assert digest64(tensors) == reference(tensors)


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**20))
def test_one_weight_is_the_same_in_python_and_torch(number: int, offset: int) -> None:
    number = abs(number) + offset
    assert digest_module._mix_one(number) == int(digest_module._mix(number, 1, torch.device("cpu"))[0])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_any_flipped_bit_shows(sizes: list[int], chooser: random.Random) -> None:
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    before = digest64(tensors)
    assert -(2**63) <= before < 2**63
    filled = [tensor for tensor in tensors if tensor.numel()]
    if filled:
        tensor = chooser.choice(filled)
        tensor[chooser.randrange(tensor.numel())] ^= 1 << chooser.randrange(8)
        assert digest64(tensors) != before


def test_places_count() -> None:
    a, b, nothing = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0]), torch.empty(0)
    values = [[a, b], [b, a], [a.flip(0), b], [a, nothing, b], [nothing, a, b], [torch.cat([a, b])]]
    assert len({digest64(value) for value in values}) == len(values)


def test_a_view_hashes_as_its_copy() -> None:
    flat = torch.randn(101)
    for view in (flat[1:], flat[3:50], flat[::2], flat.reshape(101, 1).t()):
        assert digest64([view]) == digest64([view.clone()])


def test_another_process_agrees() -> None:
    code = "import torch; from rubato.checkpoint.digest import digest64; print(digest64([torch.arange(99999)]))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(output) == digest64([torch.arange(99999)])


def test_nothing_hashes_to_nothing() -> None:
    assert digest64([]) == 0
