from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rubato.launch import devices
from rubato.launch.devices import VISIBLE_VARIABLE, count_devices, share_of_slot, visible_devices


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("0,1,2", ("0", "1", "2")),
        ("3, 1", ("3", "1")),
        ("GPU-4b2f,MIG-77aa", ("GPU-4b2f", "MIG-77aa")),
        ("2,-1,0", ("2",)),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_what_the_user_lets_be_seen_is_shared_out(told: str, expected: tuple[str, ...]) -> None:
    assert visible_devices({VISIBLE_VARIABLE: told}) == expected


@pytest.mark.parametrize(
    ("names", "each", "expected"),
    [
        (("0", "1", "2", "3"), 1, ["0", "1", "2", "3"]),
        (("0", "1"), 1, ["0", "1", "0", "1"]),
        (("3", "GPU-4b2f", "5"), 1, ["3", "GPU-4b2f", "5", "3"]),
        (("0", "1", "2", "3"), 2, ["0,1", "2,3", "0,1", "2,3"]),
        (("0", "1"), 4, ["0,1"] * 4),
    ],
)
def test_workers_go_round_the_devices(names: tuple[str, ...], each: int, expected: list[str]) -> None:
    assert [share_of_slot(slot, names, each)[VISIBLE_VARIABLE] for slot in range(4)] == expected


@pytest.mark.parametrize("names", [(), ("0",), ("GPU-4b2f",)])
def test_where_there_is_nothing_to_choose_nothing_is_said(names: tuple[str, ...]) -> None:
    assert share_of_slot(3, names) == {}


def test_devices_are_counted_as_the_driver_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "GPU 0: A (UUID: GPU-1)\n  MIG 1g Device 0: (UUID: MIG-1)\nGPU 1: A (UUID: GPU-2)\n"
    monkeypatch.setattr(devices, "LIST_COMMAND", (sys.executable, "-c", f"print({listed!r}, end='')"))
    assert visible_devices({}) == ("0", "1")


def test_devices_are_counted_as_files_where_the_driver_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "LIST_COMMAND", (str(tmp_path / "missing"),))
    monkeypatch.setattr(devices, "_DEVICE_FOLDER", tmp_path)
    assert count_devices() == 2
