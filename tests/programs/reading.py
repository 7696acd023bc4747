"""Datasets that prefetch processes read in tests."""

import contextlib
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset


class Noisy(Dataset):
    """Draws from every generator; what it reads depends on nothing else."""

    def __init__(self, count: int = 40) -> None:
        self.rows = torch.randn(count, 21, generator=torch.Generator().manual_seed(1))
        self.table = np.arange(count * 3.0).reshape(count, 3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        noise = torch.randn(21) * random.random() + float(np.random.rand())
        return {
            "x": self.rows[index] + noise,
            "y": self.table[index],
            "name": str(index),
            "sum": self.rows[index].sum(),
        }


class Failing(Noisy):
    """Raises for one sample; or for all, but in one process only."""

    def __init__(self, sample: int = 7, good_pid: int = 0) -> None:
        super().__init__()
        self.sample, self.good_pid = sample, good_pid

    def __getitem__(self, index: int) -> dict:
        if os.getpid() == self.good_pid or (not self.good_pid and index != self.sample):
            return super().__getitem__(index)
        raise OSError("disk gone")


class Slow(Noisy):
    """Takes so many seconds for a sample."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def __getitem__(self, index: int) -> dict:
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Held(Noisy):
    """Blocks in every process but one while a file exists."""

    def __init__(self, hold: str, good_pid: int) -> None:
        super().__init__()
        self.hold, self.good_pid = hold, good_pid

    def __getitem__(self, index: int) -> dict:
        while os.getpid() != self.good_pid and Path(self.hold).exists():
            time.sleep(0.01)
        return super().__getitem__(index)


class Arithmetic(Dataset):
    """What arithmetic depends on where it is read, and whether that process has loaded the compiler."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list:
        filled = torch.utils.deterministic.fill_uninitialized_memory
        settings = torch.get_deterministic_debug_mode(), torch.get_num_threads(), filled, str(torch.get_default_dtype())
        inductor = os.environ.get("TORCHINDUCTOR_DETERMINISTIC")
        return [os.getpid(), *settings, inductor, "torch._inductor" in sys.modules]


class Descriptors(Dataset):
    """What its process has open."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> list:
        links = []
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # that of the listing itself
                links.append(str(one.readlink()))
        return [os.getpid(), links]
