"""Reading bodies under caps: size, depth, and YAML without its traps."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import yaml
from fastapi import Request

from rubato.errors import Finding, SpecError
from rubato.spec_yaml import SpecLoader, describe_yaml_error
from rubato.wire.codec import from_json, is_float
from service.errors import ErrorKind, ServiceError

T = TypeVar("T")

MAX_DEPTH = 32
TOO_DEEP = f"The body is nested deeper than {MAX_DEPTH} levels."
JSON = "application/json"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_MAY_BE_UNSTORABLE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])|\xed[\xa0-\xbf]|\x00")
"""What such texts need in JSON: an escape, the UTF-8 of half a surrogate pair, or a body in UTF-16 or UTF-32."""
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ServiceError: body_too_large, as soon as it is.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise ServiceError(ErrorKind.BODY_TOO_LARGE, f"The body may have {limit_bytes} bytes.")
    return bytes(body)


def parse_json(body: bytes) -> Any:
    """JSON of bounded depth, without NaN and infinities, and without a key that stands twice.

    Raises:
        ServiceError: invalid_request.
    """
    try:
        data = json.loads(body, parse_constant=_refuse_constant, object_pairs_hook=_mapping)
    except ValueError as error:
        raise _unreadable("JSON", error) from None
    except RecursionError:
        raise _too_deep() from None
    check_json(data)
    return data


def parse_report_json(body: bytes) -> Any:
    """JSON from a controller: a loss may be NaN there, and texts are cleaned instead of refused.

    Raises:
        ServiceError: invalid_request.
    """
    try:
        data = json.loads(body)
    except ValueError as error:
        raise _unreadable("JSON", error) from None
    except RecursionError:
        raise _too_deep() from None
    _check_depth(data)
    return _cleaned(data) if _MAY_BE_UNSTORABLE.search(body) else data


def parse_yaml(body: bytes) -> Any:
    """YAML as plain JSON types.

    Raises:
        ServiceError: invalid_request.
    """
    try:
        data = yaml.load(body, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise _unreadable("YAML", describe_yaml_error(error)) from None
    except RecursionError:
        raise _too_deep() from None
    check_json(data)
    return data


async def check_body(request: Request) -> None:
    """Refuse a body that is no JSON as `parse_json` has it, of a route whose body FastAPI reads.

    Raises:
        ServiceError: unsupported_media_type, invalid_request.
    """
    if not request.scope["route"].dependant.body_params:
        return
    if body := await request.body():
        check_kind(request, "body", (JSON,), usual="none")
        parse_json(body)


async def read_spec_data(request: Request, limit_bytes: int) -> Any:
    """The job spec of a request, JSON or YAML by its content type.

    Raises:
        ServiceError: unsupported_media_type, body_too_large, invalid_request.
    """
    kind = check_kind(request, "spec", (JSON, *YAML_TYPES))
    body = await read_body(request, limit_bytes)
    return parse_json(body) if kind == JSON else parse_yaml(body)


async def read_json(request: Request, what: str, limit_bytes: int, kinds: Sequence[str] = (JSON,)) -> Any:
    """The JSON of a request of one of these content types.

    Raises:
        ServiceError: unsupported_media_type, body_too_large, invalid_request.
    """
    check_kind(request, what, kinds)
    return parse_json(await read_body(request, limit_bytes))


def check_kind(request: Request, what: str, kinds: Sequence[str], usual: str = JSON) -> str:
    """The content type of a body; `usual` where the request names none.

    Raises:
        ServiceError: unsupported_media_type, where it is none of `kinds`.
    """
    kind = request.headers.get("content-type", usual).split(";")[0].strip().lower()
    if kind not in kinds:
        told = f"Send the {what} with Content-Type: {' or '.join(kinds[:2])}; this request has {kind[:80] or 'none'}."
        raise ServiceError(ErrorKind.UNSUPPORTED_MEDIA_TYPE, told)
    return kind


async def read_wire(request: Request, kind: type[T], limit_bytes: int) -> T:
    """A message of `rubato.wire`; keys that a newer peer sends besides are ignored.

    Raises:
        ServiceError: body_too_large, invalid_request with every finding.
    """
    data = parse_report_json(await read_body(request, limit_bytes))
    try:
        return from_json(kind, data)
    except SpecError as error:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"The {kind.__name__} is not valid: {error}.", findings=error.findings
        ) from None


class _Loader(SpecLoader):
    """Without aliases: a small text could stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("anchors and aliases (&, *) are not allowed in a spec; write the value out")
        return super().compose_node(parent, index)


def check_text(text: str, name: str) -> None:
    """Refuse a parameter that no database takes.

    Raises:
        ServiceError: invalid_request.
    """
    if _clean(text) != text:
        message = "holds a NUL character or half a surrogate pair"
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"{name} {message}.", findings=[Finding(name, message)])


def check_json(data: Any) -> None:
    """Refuse what is nested too deep, and texts and numbers that no database or JSON reader takes.

    Raises:
        ServiceError: invalid_request.
    """
    _check_depth(data)
    _check_values(data)


def _check_depth(data: Any) -> None:
    level = [data] if type(data) in (dict, list) else []
    for _ in range(MAX_DEPTH):
        level = [
            item
            for holder in level
            for item in (holder.values() if type(holder) is dict else holder)
            if type(item) in (dict, list)
        ]
        if not level:
            return
    raise _too_deep()


def _check_values(data: Any) -> None:
    if isinstance(data, dict):
        for key, value in data.items():
            _check_values(key)
            _check_values(value)
    elif isinstance(data, list):
        for item in data:
            _check_values(item)
    elif isinstance(data, str):
        if _clean(data) != data:
            raise ServiceError(ErrorKind.INVALID_REQUEST, "The body holds a NUL character or half a surrogate pair.")
    elif isinstance(data, float) and (data != data or data in (float("inf"), float("-inf"))):
        raise ServiceError(ErrorKind.INVALID_REQUEST, "The body holds a number that is not finite.")
    elif isinstance(data, int) and not is_float(data):
        raise ServiceError(ErrorKind.INVALID_REQUEST, "The body holds a whole number of more than 1023 bits.")
    elif data is not None and not isinstance(data, (bool, int, float)):
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"The body holds a {type(data).__name__}, which JSON does not know."
        )


def _cleaned(data: Any) -> Any:
    if isinstance(data, str):
        return _clean(data)
    if isinstance(data, dict):
        return {_clean(key): _cleaned(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_cleaned(item) for item in data]
    return data


def _clean(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def _unreadable(language: str, error: object) -> ServiceError:
    detail = " ".join(str(error).split())[:300]
    return ServiceError(
        ErrorKind.INVALID_REQUEST, f"The body is no {language}: {detail}.", findings=[Finding("", detail)]
    )


def _too_deep() -> ServiceError:
    return ServiceError(ErrorKind.INVALID_REQUEST, TOO_DEEP)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands twice")
    return mapping


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
