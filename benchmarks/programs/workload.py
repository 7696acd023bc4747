"""What every peer trains: a perceptron of 10 million parameters, SGD with momentum, one thread a worker.

The model keeps a ledger: one more parameter `seen`, an element a sample, whose gradient is what the sample counted in
the update. It goes through the same reduction, optimizer and checkpoints as all the others, so at the end it tells how
often each sample is in the weights, whatever was redone, rolled back or dropped on the way.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.programs import WARM_STEPS

WIDTH = 1780
"""Of the hidden layers: 10 million parameters with the 784 inputs."""
NUM_SAMPLES = 4096
HOLD = "hold"


@dataclass(frozen=True)
class Workload:
    """What a run trains and where it leaves its figures."""

    folder: str
    """Rows, results and checkpoints of this run."""
    steps: int
    width: int = WIDTH
    batch: int = 256
    """Samples of a step over all workers, whatever their number."""
    passes: int = 1
    """Forward and backward passes of a worker in a step."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0: none."""
    device_s: float = 0.0
    """What each sample of a pass takes besides, without a core: as where a device computes it."""
    hold_s: float = 0.0
    """What every step is slowed by while the file `hold` lies in the folder: a small model would come to its end
    before a worker has even started."""

    @classmethod
    def from_json(cls, text: str) -> Workload:
        return cls(**json.loads(text))

    def wait_for_device(self, samples: int) -> None:
        """Leave the core to others while a device computes the pass of so many."""
        if self.device_s:
            time.sleep(self.device_s * samples)

    def hold(self) -> None:
        """Slow this step, if it is to be."""
        if self.hold_s and (Path(self.folder) / HOLD).exists():
            time.sleep(self.hold_s)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Network(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, 10),
        )  # fmt: skip
        self.seen = nn.Parameter(torch.zeros(NUM_SAMPLES))

    def forward(self, x: torch.Tensor, ids: torch.Tensor | None = None) -> Any:
        """Logits; with the samples' numbers also what they add to the ledger: DDP wants all parameters in use."""
        logits = self.layers(x)
        return logits if ids is None else (logits, self.seen[ids].mean())


def mean_loss(outputs: tuple[torch.Tensor, torch.Tensor], y: torch.Tensor) -> torch.Tensor:
    """Of a microbatch; the ledger's part is worth its gradient only."""
    logits, entered = outputs
    return F.cross_entropy(logits, y) + (entered - entered.detach())


def sgd(network: Network) -> torch.optim.SGD:
    groups = [
        {"params": network.layers.parameters(), "lr": 0.01, "momentum": 0.9},
        {"params": [network.seen], "lr": 1.0},
    ]
    return torch.optim.SGD(groups)


class Noise(torch.utils.data.Dataset[tuple[torch.Tensor, int, int]]):
    def __init__(self, count: int = NUM_SAMPLES) -> None:
        self.x = torch.randn(count, 784, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.x[index], index % 10, index

    def batch(self, ids: Sequence[int]) -> list[torch.Tensor]:
        """As a DataLoader without processes of its own makes it."""
        made: list[torch.Tensor] = torch.utils.data.default_collate([self[index] for index in ids])
        return made


def share(step: int, rank: int, world: int, batch: int) -> list[int]:
    """The samples of a worker in a step: the epoch's order is seeded, and a step covers the next `batch` of it."""
    first, last = step * batch + rank * batch // world, step * batch + (rank + 1) * batch // world
    ids: list[int] = []
    while first < last:
        epoch, place = divmod(first, NUM_SAMPLES)
        order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(epoch))
        taken = order[place : place + last - first].tolist()
        ids += taken
        first += len(taken)
    return ids


class Figures:
    """What a worker leaves in the folder of its run.

    Args:    rank: this worker's, for whoever wants to kill it.
    """

    def __init__(self, job: Workload, rank: int | None = None) -> None:
        self._folder = Path(job.folder)
        self._batch = job.batch
        self._steps = 0
        self._cpu_before = time.process_time()
        if rank is not None:
            replace(self._folder / f"pid-{rank}", str(os.getpid()))

    def stepped(self) -> None:
        """Told by every worker after every step; after the first ones its processor time counts."""
        self._steps += 1
        if self._steps == WARM_STEPS:
            self._cpu_before = time.process_time()

    def committed(self, step: int, workers: int, generation: str) -> None:
        """Told by the lowest rank when the optimizer has run: so many steps are done."""
        self._tell(step=step, workers=workers, generation=generation)

    def dropped(self, step: int) -> None:
        """Told by the lowest rank: the step was computed, and is not committed."""
        self._tell(dropped=step)

    def _tell(self, **values: Any) -> None:
        line = json.dumps({"time": time.time(), **values}) + "\n"
        with (self._folder / "rows.jsonl").open("a") as rows:
            rows.write(line)

    def ended(self, network: Network, optimizer: torch.optim.Optimizer) -> None:
        """Told by every worker at the end."""
        state = {
            "digest": digest(network, optimizer),
            "counts": (network.seen.detach() * -self._batch).round().long().tolist(),
            "peak_bytes": peak_bytes(),
            "step_cpu_s": (time.process_time() - self._cpu_before) / max(1, self._steps - WARM_STEPS),
        }
        replace(self._folder / f"result-{os.getpid()}.json", json.dumps(state))


def replace(path: Path, text: str) -> None:
    """Write a file that is never seen in part."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)


def digest(network: Network, optimizer: torch.optim.Optimizer) -> str:
    """SHA-256 over parameters and momentum."""
    sha = hashlib.sha256()
    for parameter in network.parameters():
        momentum = optimizer.state[parameter].get("momentum_buffer")
        for tensor in (parameter, momentum):
            if tensor is not None:
                sha.update(tensor.detach().contiguous().numpy().tobytes())
    return sha.hexdigest()


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory a process ever had. Not ru_maxrss: that begins with what its parent had at the fork."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
