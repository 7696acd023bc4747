"""Prefixed ids whose text sorts by creation time."""

from __future__ import annotations

import re
import secrets
import threading
from collections import defaultdict
from datetime import datetime
from typing import Literal

Prefix = Literal["job", "ckpt", "tok", "usr", "ses", "agt", "req", "whk", "dlv"]

# Crockford's base 32 in lower case: no i, l, o, u, and the digits sort before the letters.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS = 10
_RANDOM_DIGITS = 16
_ID = re.compile(rf"[a-z]+_[{_ALPHABET}]{{{_TIME_DIGITS + _RANDOM_DIGITS}}}")


class _Sequence:
    """The ids of one prefix in this process: within one millisecond the next continues, so that order stays order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millisecond = -1
        self._number = 0

    def next(self, millisecond: int) -> int:
        with self._lock:
            if millisecond == self._millisecond:
                self._number += 1 + secrets.randbits(40)
            else:
                self._millisecond = millisecond
                # One bit below the width: there is always room to continue.
                self._number = secrets.randbits(79)
            return self._number


_sequences: defaultdict[Prefix, _Sequence] = defaultdict(_Sequence)


def new_id(prefix: Prefix, now: datetime) -> str:
    """An id such as `job_01jd...`: 50 bits of milliseconds, then 80 bits nobody can guess."""
    millisecond = int(now.timestamp() * 1000)
    number = _sequences[prefix].next(millisecond)
    return f"{prefix}_{_encode(millisecond, _TIME_DIGITS)}{_encode(number, _RANDOM_DIGITS)}"


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` has the form of an id of this kind."""
    return text.startswith(prefix + "_") and bool(_ID.fullmatch(text))


def _encode(value: int, digits: int) -> str:
    return "".join(_ALPHABET[(value >> (5 * place)) & 31] for place in reversed(range(digits)))
