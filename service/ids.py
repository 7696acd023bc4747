"""Prefixed ids whose text sorts by creation time."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import Literal

Prefix = Literal["job", "ckpt", "tok", "ses", "agt", "req"]

# Crockford's base 32 in lower case: no i, l, o, u, and the digits sort before the letters.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 10
_RANDOM_DIGITS = 16
_ID = re.compile(rf"[a-z]+_[{_ALPHABET}]{{{_TIME_DIGITS + _RANDOM_DIGITS}}}")


def new_id(prefix: Prefix, now: datetime) -> str:
    """An id such as `job_01jd...`: 50 bits of milliseconds, then 80 random bits."""
    return (
        f"{prefix}_{_encode(int(now.timestamp() * 1000), _TIME_DIGITS)}{_encode(secrets.randbits(80), _RANDOM_DIGITS)}"
    )


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` has the form of an id of this kind."""
    return text.startswith(prefix + "_") and bool(_ID.fullmatch(text))


def _encode(value: int, digits: int) -> str:
    return "".join(_ALPHABET[(value >> (5 * place)) & 31] for place in reversed(range(digits)))
