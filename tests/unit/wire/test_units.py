from __future__ import annotations

import pytest

from rubato.wire.units import parse_size_bytes, to_size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**34, "16 GiB"), (2**40 * 2000, "2000 TiB")],
)
def test_sizes_are_told_as_they_are_understood(size: int, text: str) -> None:
    assert to_size(size) == text
    assert parse_size_bytes(text) == size
