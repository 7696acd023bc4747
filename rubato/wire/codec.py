"""Dataclasses to JSON and back, by their type annotations.

`from_json` is strict about types and collects every finding with its path, so that one reply names all mistakes.
Unknown keys are an error where `strict` (a user's spec) and ignored otherwise (a newer peer may send more).

Reports carry thousands of rows and lines, and nearly all of them hold. So what is not strict is first read by readers
that are made once for each type and know no paths; where one of them is not content the whole is read again, slowly.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from rubato.errors import Finding, SpecError, unknown_field

T = TypeVar("T")


def is_float(number: int) -> bool:
    """Whether a whole number lies within the range of floats, which ends just below 2**1024."""
    return number.bit_length() < 1024


def to_json(value: Any) -> Any:
    """Plain JSON types for a dataclass, tuple, dict or scalar."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


def from_json(cls: type[T], data: Any, *, strict: bool = False) -> T:
    """Build `cls` from plain JSON types.

    Raises:
        SpecError: with every finding, each naming its path.
    """
    if not strict:
        try:
            return typing.cast(T, _reader(typing.cast(Any, cls))(data))
        except (_NotSo, SpecError):
            pass
    findings: list[Finding] = []
    value = _decode(cls, data, "", findings, strict=strict)
    if findings:
        raise SpecError(findings)
    return typing.cast(T, value)


Reader = Callable[[Any], Any]


class _NotSo(Exception):
    """A reader is not content; the slow way says why, or is."""


@functools.cache
def _reader(kind: Any) -> Reader:
    """What reads plain JSON types as this kind, or raises `_NotSo`; decides exactly as `_decode`."""
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case typing.Union | types.UnionType:
            choices = [choice for choice in arguments if choice is not type(None)]
            if len(choices) == 1 and len(choices) < len(arguments):
                return _read_optional(_reader(choices[0]))
        case origin if origin is Literal:
            return _read_literal(arguments)
        case origin if origin is tuple:
            return _read_tuple(_reader(arguments[0]))
        case origin if origin is dict:
            return _read_dict(_reader(arguments[1]))
    if kind is Any:
        return lambda data: data
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind)
    if kind is float:
        return _read_float
    if kind in (str, int, bool):
        return _read_exactly(kind)
    return _read_slowly(kind)


def _read_exactly(kind: type) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise _NotSo
        return data

    return read


def _read_literal(choices: tuple[Any, ...]) -> Reader:
    known = {(type(choice), choice) for choice in choices}

    def read(data: Any) -> Any:
        if type(data) not in (str, int, bool) or (type(data), data) not in known:
            raise _NotSo
        return data

    return read


def _read_float(data: Any) -> Any:
    if type(data) is float:
        return data
    if type(data) is int and is_float(data):
        return float(data)
    raise _NotSo


def _read_optional(inner: Reader) -> Reader:
    return lambda data: None if data is None else inner(data)


def _read_tuple(inner: Reader) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not list:
            raise _NotSo
        return tuple(map(inner, data))

    return read


def _read_dict(inner: Reader) -> Reader:
    def read(data: Any) -> Any:
        if type(data) is not dict or not all(type(key) is str for key in data):
            raise _NotSo
        return {key: inner(item) for key, item in data.items()}

    return read


def _read_dataclass(kind: Any) -> Reader:
    fields = dataclasses.fields(kind)
    if any(field.metadata.get("parse") for field in fields):
        return _read_slowly(kind)
    hints = _hints(kind)
    readers = [(field.name, _reader(hints[field.name])) for field in fields]
    required = frozenset(
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )

    def read(data: Any) -> Any:
        if type(data) is not dict or not required <= data.keys():
            raise _NotSo
        return kind(**{name: reader(data[name]) for name, reader in readers if name in data})

    return read


def _read_slowly(kind: Any) -> Reader:
    def read(data: Any) -> Any:
        findings: list[Finding] = []
        value = _decode(kind, data, "", findings, strict=False)
        if findings:
            raise _NotSo
        return value

    return read


def _decode(kind: Any, data: Any, path: str, findings: list[Finding], *, strict: bool) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        choices = [choice for choice in arguments if choice is not type(None)]
        if len(choices) == 1:
            return _decode(choices[0], data, path, findings, strict=strict)
        for choice in choices:
            attempt: list[Finding] = []
            value = _decode(choice, data, path, attempt, strict=strict)
            if not attempt:
                return value
        findings.append(Finding(path, f"expected {_describe(kind)}, got {_show(data)}"))
        return None
    if origin is Literal:
        if data in arguments and not (isinstance(data, bool) and True not in arguments and False not in arguments):
            return data
        if data is False and "off" in arguments:
            return "off"  # what YAML 1.1 makes of it, and Python would write
        choices_text = ", ".join(repr(choice) for choice in arguments)
        findings.append(Finding(path, f"must be one of {choices_text}, got {_show(data)}"))
        return None
    if origin is tuple:
        if not isinstance(data, (list, tuple)):
            findings.append(Finding(path, f"expected a list, got {_show(data)}"))
            return None
        return tuple(
            _decode(arguments[0], item, f"{path}[{index}]", findings, strict=strict) for index, item in enumerate(data)
        )
    if origin is dict:
        if not isinstance(data, dict):
            findings.append(Finding(path, f"expected a mapping, got {_show(data)}"))
            return None
        findings += [Finding(path, f"the key {_show(key)} is no text") for key in data if not isinstance(key, str)]
        return {
            key: _decode(arguments[1], item, _join(path, str(key)), findings, strict=strict)
            for key, item in data.items()
        }
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, path, findings, strict=strict)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        if is_float(data):
            return float(data)
        findings.append(Finding(path, f"is out of range: a whole number of {data.bit_length()} bits"))
        return None
    if isinstance(data, kind) and not (isinstance(data, bool) and kind is not bool):
        return data
    hint = f': in quotes it is one, "{data}"' if kind is str and isinstance(data, int | float) else ""
    findings.append(Finding(path, f"expected {_describe(kind)}, got {_show(data)}{hint}"))
    return None


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode_dataclass(kind: Any, data: Any, path: str, findings: list[Finding], *, strict: bool) -> Any:
    if not isinstance(data, dict):
        findings.append(Finding(path, f"expected keys with values ({_some(kind)}), got {_show(data)}"))
        return None
    hints = _hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if strict:
        for key in data:
            if key not in fields:
                findings.append(Finding(_join(path, str(key)), unknown_field(str(key), fields)))
    values: dict[str, Any] = {}
    before = len(findings)
    for name, field in fields.items():
        if name in data:
            parse = field.metadata.get("parse")
            raw = data[name]
            if parse is not None and raw is not None:
                try:
                    raw = parse(raw)
                except ValueError as error:
                    findings.append(Finding(_join(path, name), str(error)))
                    continue
            values[name] = _decode(hints[name], raw, _join(path, name), findings, strict=strict)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            findings.append(Finding(_join(path, name), "is required"))
    if len(findings) > before:
        return None
    try:
        return kind(**values)
    except SpecError as error:
        findings.extend(Finding(_join(path, finding.path), finding.message) for finding in error.findings)
        return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping"}


def _describe(kind: Any) -> str:
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if arguments:
        return " or ".join(_describe(choice) for choice in arguments if choice is not type(None))
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _some(kind: Any) -> str:
    """The first keys of a section, as an example of what goes there."""
    names = [field.name for field in dataclasses.fields(kind)]
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _show(data: Any) -> str:
    if data is None:
        return "nothing"
    text = repr(data)
    return text if len(text) <= 60 else text[:57] + "..."
