from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from api.logging import UnfailingOutput


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_fails_nobody() -> None:
    is_done = False
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails
        output = UnfailingOutput(full)
        assert output.write("a line\n") == 7
        output.flush()
        is_done = True
    assert is_done


def test_what_was_dropped_is_told_when_there_is_room_again() -> None:
    class Disk(io.StringIO):
        is_full = False

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    disk = Disk()
    output = UnfailingOutput(disk)
    output.write("first\n")
    disk.is_full = True
    for _ in range(3):
        output.write("lost\n")
    disk.is_full = False
    output.write("second\n")
    output.write("third\n")
    assert disk.getvalue() == "first\n3 pieces of this log could not be written and are lost\nsecond\nthird\n"
