"""State as a JSON document and a list of tensors, and back, bit for bit.

A state_dict is a tree of dicts, lists and scalars with tensors for leaves. Plain JSON would turn tuples into lists,
number keys into strings and refuse infinity: schedulers then misbehave in silence. So everything JSON has no word for
becomes `{"$": tag, ...}`; tensors go by reference, `{"$": "tensor", "v": index}`. There is no pickle and no name of a
class to import: reading a document runs nobody's code.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rubato.checkpoint.layout import bytes_tensor, dtype_name, dtype_named
from rubato.errors import CheckpointCorrupt, CheckpointError

FORMAT_VERSION = 1

_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "list": list, "dict": dict, "set": set, "tuple": tuple,
}  # fmt: skip
"""The factories a defaultdict may have: those that can be named without importing anything."""

_NUMPY_KINDS = "biufc"
"""Booleans, integers, floats, complex: dtypes whose bytes are their value."""

_PLAIN_INT_BITS = 1024
"""Longer integers are written in hexadecimal: Python refuses decimal text of more than 4300 digits."""


def encode(tree: Any) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Split a tree into a JSON document and its tensors (the very objects, not copies).

    The document depends on values alone, never on whether two places hold one object: every worker that holds equal
    state must get an equal layout, and one that loaded it shares less than the one that built it.

    Raises:
        CheckpointError: a value of a type that cannot be saved; the message names its path.
    """
    encoder = _Encoder()
    try:
        return {"format": FORMAT_VERSION, "tree": encoder.encode(tree, "state")}, encoder.tensors
    except RecursionError as error:
        raise CheckpointError("state is nested too deeply, or contains itself") from error


def decode(document: dict[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """The tree of a document; `tensors` appear in it themselves.

    Raises:
        CheckpointCorrupt: no document of ours, or not with these tensors.
        CheckpointError: a document of a newer format.
    """
    if not isinstance(document, dict) or "tree" not in document:
        raise CheckpointCorrupt("not a state document")
    if document.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"the state has format {document.get('format')}, this Rubato reads {FORMAT_VERSION}: "
            "use the Rubato that wrote it"
        )
    try:
        return _Decoder(tensors).decode(document["tree"])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, struct.error) as error:
        raise CheckpointCorrupt(f"the state document is damaged: {error!r}") from error


class _Encoder:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def encode(self, value: Any, path: str) -> Any:
        # Exact types: a subclass may carry state that its base does not show, so it is refused unless named here.
        kind = type(value)
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if value.bit_length() <= _PLAIN_INT_BITS else {"$": "int", "v": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$": "float", "v": struct.pack("<d", value).hex()}
        if kind is list:
            return self._items(value, path)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if isinstance(value, (np.generic, np.ndarray)):
            return self._numpy(value, path)
        if isinstance(value, dict):
            return self._mapping(value, path)
        return self._other(value, path)

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.encode(value, f"{path}[{index}]") for index, value in enumerate(values)]

    def _tensor(self, value: torch.Tensor, path: str) -> dict[str, Any]:
        if type(value) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise _refusal(value, path)
        if value.layout != torch.strided or value.is_quantized or value.device.type == "meta":
            raise CheckpointError(
                f"{path}: a {value.layout} tensor of {dtype_name(value.dtype)} on {value.device.type} cannot be saved; "
                "keep a dense copy of it (`.to_dense()`, `.dequantize()`) in the state"
            )
        self.tensors.append(value)
        return {"$": "tensor", "v": len(self.tensors) - 1}

    def _numpy(self, value: Any, path: str) -> dict[str, Any]:
        if value.dtype.kind not in _NUMPY_KINDS or type(value) not in (np.ndarray, value.dtype.type):
            raise _refusal(value, path)
        if isinstance(value, np.generic):
            return {"$": "numpy", "dtype": value.dtype.str, "v": value.tobytes().hex()}
        # As a tensor of bytes: arrays may be large, and torch knows neither all of numpy's dtypes nor its byte orders.
        self.tensors.append(bytes_tensor(value.tobytes()))
        return {"$": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape), "v": len(self.tensors) - 1}

    def _mapping(self, value: Any, path: str) -> dict[str, Any]:
        tag = type(value).__name__
        if type(value) is not defaultdict and _MAPPINGS.get(tag) is not type(value):
            raise _refusal(value, path)
        pairs = [[self._key(key, path), self.encode(item, f"{path}[{_label(key)}]")] for key, item in value.items()]
        node: dict[str, Any] = {"$": tag, "v": pairs}
        if type(value) is defaultdict:
            node["factory"] = _factory_name(value.default_factory, path)
        return node

    def _key(self, key: Any, path: str) -> Any:
        before = len(self.tensors)
        encoded = self.encode(key, f"{path} key {_label(key)}")
        if len(self.tensors) != before:
            raise CheckpointError(f"{path}: a tensor cannot be saved as the key of a dict or the member of a set")
        return encoded

    def _other(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        if kind is tuple or kind is torch.Size:
            return {"$": "tuple" if kind is tuple else "Size", "v": self._items(value, path)}
        if kind is deque:
            return {"$": "deque", "v": self._items(value, path), "maxlen": value.maxlen}
        if kind in (set, frozenset):
            # Iteration follows the hash seed of the process; sorted by their saved form all workers agree.
            members = sorted((self._key(member, path) for member in value), key=json.dumps)
            return {"$": kind.__name__, "v": members}
        if kind in (bytes, bytearray):
            return {"$": kind.__name__, "v": base64.b64encode(value).decode()}
        if kind is complex:
            return {"$": "complex", "v": [self.encode(value.real, path), self.encode(value.imag, path)]}
        if kind is torch.dtype:
            return {"$": "dtype", "v": dtype_name(value)}
        raise _refusal(value, path)


class _Decoder:
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors

    def decode(self, node: Any) -> Any:
        if isinstance(node, list):
            return self._items(node)
        if not isinstance(node, dict):
            return node
        tag: str = node["$"]
        content: Any = node["v"]
        if tag == "tensor":
            return self._tensor(content)
        if tag in _MAPPINGS:
            return _MAPPINGS[tag](dict(self._pairs(content)))
        if tag == "defaultdict":
            factory = node["factory"]
            return defaultdict(None if factory is None else _FACTORIES[factory], self._pairs(content))
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._items(content))
        if tag == "deque":
            return deque(self._items(content), maxlen=node["maxlen"])
        if tag in ("numpy", "ndarray"):
            return self._numpy(node)
        return self._scalar(tag, content)

    def _items(self, nodes: list[Any]) -> list[Any]:
        return [self.decode(node) for node in nodes]

    def _pairs(self, pairs: list[Any]) -> list[tuple[Any, Any]]:
        return [(self.decode(key), self.decode(value)) for key, value in pairs]

    def _tensor(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self.tensors):
            raise IndexError(f"tensor {index} of {len(self.tensors)}")
        return self.tensors[index]

    def _numpy(self, node: dict[str, Any]) -> Any:
        dtype = np.dtype(node["dtype"])
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"numpy dtype {dtype}")
        if node["$"] == "numpy":
            return np.frombuffer(bytes.fromhex(node["v"]), dtype)[0]
        # A copy: a loaded state may be written to, and must not write into the tensors it was decoded from.
        data = self._tensor(node["v"]).cpu().numpy().tobytes()
        return np.frombuffer(bytearray(data), dtype).reshape(node["shape"])

    def _scalar(self, tag: str, content: Any) -> Any:
        match tag:
            case "int":
                return int(content, 16)
            case "float":
                return struct.unpack("<d", bytes.fromhex(content))[0]
            case "complex":
                real, imag = self._items(content)
                return complex(real, imag)
            case "bytes":
                return base64.b64decode(content, validate=True)
            case "bytearray":
                return bytearray(base64.b64decode(content, validate=True))
            case "dtype":
                return dtype_named(content)
            case _:
                raise ValueError(f"unknown tag {tag!r}")


_MAPPINGS: dict[str, Callable[[dict[Any, Any]], Any]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple, "Size": torch.Size, "set": set, "frozenset": frozenset,
}  # fmt: skip


def _factory_name(factory: Callable[[], Any] | None, path: str) -> str | None:
    if factory is None:
        return None
    for name, known in _FACTORIES.items():
        if factory is known:
            return name
    raise CheckpointError(
        f"{path}: a defaultdict with the factory {factory!r} cannot be saved; save `dict(...)` of it, or use one of "
        f"{', '.join(_FACTORIES)}"
    )


def _label(key: Any) -> str:
    """A key as a path shows it."""
    try:
        text = repr(key)
    except ValueError:  # an integer beyond Python's limit for decimal text
        text = "..."
    return text if len(text) <= 60 else text[:57] + "..."


def _refusal(value: Any, path: str) -> CheckpointError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return CheckpointError(
        f"{path}: a {kind} cannot be saved. State may hold numbers, strings, bytes, tensors, numpy values, and dicts, "
        "lists, tuples, sets and deques of them; let state_dict() return these and load_state_dict() rebuild the rest"
    )
