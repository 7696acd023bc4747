"""Durations ("1h30m", 90) and sizes ("2GiB", 1024) as people write them; moments as we do."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?")
_FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_duration_s(value: object) -> float:
    """Seconds of `90`, `1.5`, `"90"`, `"1h30m"` or `"2d"`.

    Raises:
        ValueError: with advice.
    """
    advice = "write seconds (90) or a duration such as '90s', '1h30m' or '2d'"
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no duration; {advice}")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"a whole number of {value.bit_length()} bits is out of range; {advice}")
    if isinstance(value, (int, float)) or (isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value.strip())):
        seconds = float(value)
    elif isinstance(value, str) and value.strip() and (match := _DURATION.fullmatch(value.strip())):
        days, hours, minutes, rest = (float(part or 0) for part in match.groups())
        seconds = days * 86400 + hours * 3600 + minutes * 60 + rest
    else:
        raise ValueError(f"{value!r} is no duration; {advice}")
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{value!r} is out of range; {advice}")
    return seconds


def parse_size_bytes(value: object) -> int:
    """Bytes of `1024`, `"2GiB"` or `"500 MB"`.

    Raises:
        ValueError: with advice.
    """
    advice = "write bytes (1048576) or a size such as '500MB' or '2GiB'"
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no size; {advice}")
    if isinstance(value, int) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        size = float(match.group(1)) * _FACTORS[match.group(2) or ""]
        if not math.isfinite(size):
            raise ValueError(f"the size is out of range; {advice}")
        return int(size)
    raise ValueError(f"{value!r} is no size; {advice}")


def plural(count: int, one: str, many: str = "") -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def to_size(size: float) -> str:
    """Bytes as people read them: `8 GiB`, `1.5 MiB`."""
    for exponent, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 2**exponent:
            return f"{size / 2**exponent:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size:g} B"


def format_bytes(count: float) -> str:
    """A size with a unit that fits, in three digits."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def three_digits(value: float) -> str:
    """Three digits that say something, and every one before the point: `0.0412`, `1,590`."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def format_pause(seconds: float) -> str:
    """`41 ms` below a second, else `2.3 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def format_seconds(seconds: float) -> str:
    """What a step or a part of it takes, in three digits: `12.3 ms`, `1.59 s`."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{three_digits(seconds)} s"


def utc_timestamp(at: float | None = None) -> str:
    """Now, or a moment in seconds since 1970, as every record of ours has it: RFC 3339 in UTC, to the microsecond."""
    moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
