from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from rubato.checkpoint.layout import empty_like_layout, layout
from rubato.checkpoint.tree import decode, encode
from rubato.errors import CheckpointCorrupt, CheckpointError

Point = namedtuple("Point", "x y")


def round_trip(tree: Any) -> Any:
    document, tensors = encode(tree)
    return decode(json.loads(json.dumps(document, allow_nan=False)), [tensor.clone() for tensor in tensors])


def same(a: Any, b: Any) -> bool:
    """Equal in type and bits, also where == is not: NaN, -0.0, 1 against True, order of dicts."""
    if type(a) is not type(b) and not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and raw(a) == raw(b)
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (np.generic, np.ndarray)):
        return (a.dtype.str, a.shape, a.tobytes()) == (b.dtype.str, b.shape, b.tobytes())
    if isinstance(a, dict):
        extras = getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
        return (
            extras
            and len(a) == len(b)
            and all(map(same, a.keys(), b.keys()))
            and all(map(same, a.values(), b.values()))
        )
    if isinstance(a, (list, tuple, deque)):
        limits = getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return limits and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
    return bool(a == b)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.sampled_from([-(2**1024), -0.0, float("nan"), -math.inf, torch.bfloat16, torch.Size([2, 3])])
    | st.sampled_from([np.float32(0.1), np.int64(-3), np.bool_(True), np.complex64(1j), np.float64("nan")])
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
leaves = scalars | st.sampled_from(
    [
        torch.tensor([1.0, float("nan"), -0.0]), torch.tensor(3), torch.zeros(0, 2), torch.ones(2, 2).bfloat16(),
        torch.tensor([True, False]), torch.arange(6).reshape(2, 3).t(), torch.tensor([1 + 2j]).conj(),
        np.arange(6.0).reshape(2, 3).T, np.array([], dtype=">i2"), np.array([1, 2], dtype=">u4"), np.array(2.5),
    ]
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=5))
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda items: defaultdict(list, items))
        | st.sets(keys, max_size=3)
        | st.binary(max_size=3).map(bytearray)
        | st.lists(keys, max_size=3).map(Counter)
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_comes_back_bit_for_bit(tree: Any) -> None:
    assert same(round_trip(tree), tree)


def test_integers_beyond_decimal_text_come_back() -> None:
    assert round_trip({-(10**6000): 10**6000}) == {-(10**6000): 10**6000}


def test_a_nan_keeps_its_payload() -> None:
    odd = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
    assert struct.pack("<d", round_trip(odd)).hex() == "010000000000f87f"


def test_generator_states_come_back_and_work() -> None:
    python, numpy_state, torch_state = round_trip((random.getstate(), np.random.get_state(), torch.get_rng_state()))
    random.setstate(python)
    np.random.set_state(numpy_state)
    torch.set_rng_state(torch_state)


def trained(make: Callable[[list[torch.Tensor]], Any]) -> Any:
    """An optimizer after three steps: lazy state exists."""
    weights = [torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)]
    optimizer = make(weights)
    for _ in range(3):
        sum((weight**2).sum() for weight in weights).backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda weights: torch.optim.AdamW(weights, amsgrad=True),
        lambda weights: torch.optim.SGD([{"params": weights[:1], "lr": 0.1}, {"params": weights[1:]}], momentum=0.9),
        lambda weights: torch.optim.AdamW(weights, lr=torch.tensor(0.01), capturable=False),
        torch.optim.RMSprop,
        torch.optim.Adafactor,
        torch.optim.ASGD,
    ],
)
def test_optimizer_states_come_back(make: Any) -> None:
    state = trained(make).state_dict()
    loaded = round_trip(state)
    assert same(loaded, state)
    fresh = make([torch.randn(4, 3, requires_grad=True), torch.randn(5, requires_grad=True)])
    fresh.load_state_dict(loaded)
    assert same(fresh.state_dict(), state)


SCHEDULERS: list[Callable[[Any], Any]] = [
    lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 4, 4]),
    lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=20),
    lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
    lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
    ),
]


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_restored_scheduler_goes_on_as_if_never_saved(make: Callable[[Any], Any]) -> None:
    def advance(optimizer: Any, scheduler: Any) -> float:
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else []))
        return float(optimizer.param_groups[0]["lr"])

    def pair() -> tuple[Any, Any]:
        optimizer = trained(lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9))
        return optimizer, make(optimizer)

    optimizer, scheduler = pair()
    for _ in range(3):
        advance(optimizer, scheduler)
    saved = round_trip((optimizer.state_dict(), scheduler.state_dict()))
    assert same(saved, (optimizer.state_dict(), scheduler.state_dict()))
    expected = [advance(optimizer, scheduler) for _ in range(6)]
    other, resumed = pair()
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    assert [advance(other, resumed) for _ in range(6)] == expected


def test_tensors_go_by_reference() -> None:
    weight = torch.randn(3)
    document, tensors = encode({"a": weight, "b": [weight]})
    assert tensors[0] is weight
    assert decode(document, tensors)["b"][0] is weight


def test_the_document_does_not_depend_on_shared_objects() -> None:
    weight = torch.ones(3)
    assert encode([weight, weight])[0] == encode([weight, weight.clone()])[0]


def test_sets_are_written_alike_under_any_hash_seed() -> None:
    code = (
        "import json; from rubato.checkpoint.tree import encode; "
        "print(json.dumps(encode({'s': {'alpha', 'beta', 'gamma', (1, 'x'), None, 2.5}})[0]))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: None, r"state\['m'\]\[1\]\['x'\]: a builtins.function cannot be saved"),
        (Point(1, 2), "Point cannot be saved"),
        (Colour.RED, "Colour cannot be saved"),
        (object(), "builtins.object"),
        (torch.device("cpu"), "torch.device"),
        (np.array(["a"]), "numpy.ndarray"),
        (np.datetime64("2020-01-01"), "numpy.datetime64"),
        (torch.eye(3).to_sparse(), "sparse_coo tensor"),
        (torch.empty(2, device="meta"), "on meta"),
        (defaultdict(lambda: 3), "defaultdict with the factory"),
        ({torch.ones(1): 2}, "key of a dict"),
        ({(1, torch.ones(1))}, "member of a set"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_path(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        encode({"m": [0, {"x": value}]})
    assert "state['m'][1]['x']" in str(caught.value)


def test_state_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contains itself"):
        encode(loop)


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "os.system", "v": "true"},
        {"$": "tensor", "v": 2},
        {"$": "tensor", "v": -1},
        {"$": "dict", "v": [1]},
        {"$": "tuple", "v": None},
        {"$": "float", "v": "zz"},
        {"$": "numpy", "dtype": "O", "v": ""},
        {"$": "dtype", "v": "Tensor"},
        {"$": "defaultdict", "factory": "eval", "v": []},
        {"v": 1},
    ],
)
def test_a_damaged_document_is_corrupt(tree: Any) -> None:
    with pytest.raises(CheckpointCorrupt):
        decode({"format": 1, "tree": tree}, [torch.ones(1)])


def test_other_formats_are_refused() -> None:
    with pytest.raises(CheckpointError, match="format 2, this Rubato reads 1"):
        decode({"format": 2, "tree": 1}, [])
    with pytest.raises(CheckpointCorrupt, match="not a state document"):
        decode({}, [])


def test_a_layout_makes_tensors_alike() -> None:
    tensors = [torch.ones(2, 3), torch.tensor(1), torch.zeros(0, 4, dtype=torch.bool), torch.ones(3).bfloat16()]
    entries = json.loads(json.dumps(layout(tensors)))
    assert entries[0] == {"dtype": "float32", "shape": [2, 3]}
    assert layout(empty_like_layout(entries)) == entries


@pytest.mark.parametrize(
    "entry", [{"dtype": "Tensor", "shape": []}, {"dtype": "int8", "shape": [-1]}, {"dtype": "int8"}]
)
def test_a_damaged_layout_is_corrupt(entry: dict[str, Any]) -> None:
    with pytest.raises(CheckpointCorrupt):
        empty_like_layout([entry])
