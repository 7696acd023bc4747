"""What bits depend on besides the program, its data and the versions: on what a process computes, and how."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def arithmetic_of(device: torch.device) -> dict[str, str]:
    """How this process computes on a device, as things stand now.

    Returns: device: its type; gpu: its model, where it is one; cpu: vendor and the instructions that torch uses of it;
        precision: how matrix products, convolutions and recurrent layers of float32 are computed (TF32 or not).
    """
    # Under these names the older switches (`allow_tf32`, `set_float32_matmul_precision`) are seen as well.
    backends: Any = torch.backends
    named = (
        {"matmul": backends.cuda.matmul, "conv": backends.cudnn.conv, "rnn": backends.cudnn.rnn}
        if device.type == "cuda"
        else {"matmul": backends.mkldnn.matmul, "conv": backends.mkldnn.conv, "rnn": backends.mkldnn.rnn}
    )
    precision = ", ".join(f"{name} {_full(backend.fp32_precision)}" for name, backend in named.items())
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {"device": device.type, **gpu, "cpu": _cpu(), "precision": precision}


def _full(precision: str) -> str:
    """One word for the two that mean "as it is": torch says `none` where nobody has asked for anything."""
    return "ieee" if precision == "none" else precision


@functools.cache
def _cpu() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_vendor()} {capability}"


def _vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = (line.partition(":") for line in lines)
    found = (value.strip() for key, _, value in told if key.strip() in ("vendor_id", "CPU implementer"))
    return next(found, platform.processor() or platform.machine())


def describe_changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What both name and say differently, in words; empty: nothing."""
    return "; ".join(
        f"{name} was {before[name]}, now it is {value}"
        for name, value in now.items()
        if before.get(name, value) != value
    )
