from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rubato.engine.arithmetic import arithmetic_of, describe_changes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_a_processor_is_told_by_vendor_and_instructions() -> None:
    told = arithmetic_of(CPU)
    assert told["device"] == "cpu"
    assert told["cpu"].endswith(torch.backends.cpu.get_cpu_capability())
    assert len(told["cpu"].split()) >= 2
    assert "gpu" not in told


def test_the_choice_of_tf32_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    gpu = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("highest")
    full = arithmetic_of(gpu)
    assert full["gpu"] == "GPU 0"
    assert full["precision"].startswith("matmul ieee, conv ")
    torch.set_float32_matmul_precision("high")
    assert arithmetic_of(gpu)["precision"].startswith("matmul tf32, conv ")


def test_lower_precision_of_a_processor_is_seen() -> None:
    torch.set_float32_matmul_precision("highest")
    full = arithmetic_of(CPU)["precision"]
    torch.set_float32_matmul_precision("medium")
    assert arithmetic_of(CPU)["precision"] != full


def test_asking_for_what_is_so_anyhow_changes_nothing() -> None:
    before = arithmetic_of(CPU)  # where nobody has asked yet, torch says `none`
    torch.set_float32_matmul_precision("highest")
    assert arithmetic_of(CPU) == before


def test_only_what_both_know_is_compared() -> None:
    assert describe_changes({"torch": "2.12", "order": "feistel"}, {"torch": "2.13", "cpu": "new"}) == (
        "torch was 2.12, now it is 2.13"
    )
    assert not describe_changes({"torch": "2.13"}, {"torch": "2.13", "gpu": "H200"})
