"""The global batch, how it is cut into microbatches, and what its size does to the learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rubato.errors import check_rules
from rubato.wire.aggregation import KEEPING_NOTHING, MAX_STEPS

if TYPE_CHECKING:
    from rubato.wire.spec import JobSpec

LrRule = Literal["none", "linear", "sqrt", "adascale"]
MAX_GLOBAL_SIZE = 1_000_000_000
MAX_MICROBATCHES = 65_536


@dataclass(frozen=True)
class BatchSpec:
    """The global batch."""

    global_size: int = 256
    """Samples in one optimizer step, whatever the worker count; at most a billion."""
    num_microbatches: int | Literal["auto"] = "auto"
    """Fixed for the job: the unit that workers share out, at most 65,536. `auto`: chosen by global_size and by
    workers.min and max, see `docs/how-to/write-a-job.md`."""
    noise_every: int = 0
    """Steps between two measurements of the gradient noise scale, which says how large a batch is worth it; each costs
    a look at every gradient. 0: none."""

    def __post_init__(self) -> None:
        count = self.num_microbatches
        check_rules(
            (self.global_size >= 1, "global_size", f"must be at least 1, got {self.global_size}"),
            (
                self.global_size <= MAX_GLOBAL_SIZE,
                "global_size",
                f"must be at most {MAX_GLOBAL_SIZE}, got {self.global_size}",
            ),
            (
                count == "auto" or count <= MAX_MICROBATCHES,
                "num_microbatches",
                f"must be at most {MAX_MICROBATCHES}, got {count}",
            ),
            (
                count == "auto" or 1 <= count <= max(1, self.global_size),
                "num_microbatches",
                f"must lie in 1..global_size ({self.global_size}), got {count}",
            ),
            (0 <= self.noise_every <= MAX_STEPS, "noise_every", f"must lie in 0..{MAX_STEPS}, got {self.noise_every}"),
        )


@dataclass(frozen=True)
class LrScalingSpec:
    """What the learning rate of the program is multiplied by, where it was chosen for another global batch."""

    rule: LrRule = "none"
    """`linear`: by the ratio of the batches (SGD). `sqrt`: by its square root (Adam and its kin). `adascale`: by what
    the noise of the gradients makes of it, from 1 to the ratio; needs `batch.noise_every`."""
    base_size: int | None = None
    """Samples of the batch that the program's learning rate was chosen for."""
    warmup_steps: int = 0
    """Steps over which the factor goes from what it was, 1 at first, to what the rule says. They begin where these
    three do: with the first step, or with that of a checkpoint that was made with others."""

    def __post_init__(self) -> None:
        check_rules(
            (
                (self.rule == "none") == (self.base_size is None),
                "base_size",
                "is the batch that the learning rate was chosen for: give it with a rule, and only then",
            ),
            (
                self.base_size is None or 1 <= self.base_size <= MAX_GLOBAL_SIZE,
                "base_size",
                f"must lie in 1..{MAX_GLOBAL_SIZE}, got {self.base_size}",
            ),
            (
                0 <= self.warmup_steps <= MAX_STEPS,
                "warmup_steps",
                f"must lie in 0..{MAX_STEPS}, got {self.warmup_steps}",
            ),
        )


def lr_scaling_rules(spec: JobSpec) -> list[tuple[bool, str, str]]:
    """(holds, field, message): what does not go together with the rest of a job."""
    is_own = spec.backend == "rubato"
    return [
        (
            spec.lr_scaling.rule != "adascale" or spec.batch.noise_every > 0,
            "lr_scaling.rule",
            "adascale goes by the noise of the gradients: give batch.noise_every, 10 say",
        ),
        (
            is_own or spec.lr_scaling.rule == "none",
            "lr_scaling",
            "the program sets its own learning rate; leave it out",
        ),
        (is_own or spec.batch.noise_every == 0, "batch.noise_every", "Ray Train has the gradients; leave it out"),
        (
            spec.batch.noise_every == 0 or spec.aggregation.compression.method in KEEPING_NOTHING,
            "batch.noise_every",
            f"{spec.aggregation.name} changes the gradient that the noise would be compared with; leave it out",
        ),
    ]


def next_useful(num_microbatches: int, workers: int, most: int) -> int | None:
    """The next larger number of workers, up to `most`, at which the largest share of a step, ceil(V/W), is smaller."""
    share = -(-num_microbatches // workers)
    return next((more for more in range(workers + 1, most + 1) if -(-num_microbatches // more) < share), None)


ROOMY = 32
"""Samples: smaller microbatches use a core badly."""


def resolve_num_microbatches(global_size: int, min_workers: int, max_workers: int, smallest: int = ROOMY) -> int:
    """Choose V for `num_microbatches: auto`.

    Of the counts 2^a and 3*2^a with at least one microbatch a worker and `smallest` samples a microbatch, the one that
    keeps the worker counts min..max busiest on average (W workers take ceil(V/W) rounds, so V/(W*ceil(V/W)) of their
    time is work); the smallest of equals, because small microbatches use a core badly. Where no count leaves so
    many samples, the smallest that gives every worker one.
    """
    counts = sorted({factor << power for factor in (1, 3) for power in range(14)})
    enough = [count for count in counts if max_workers <= count <= global_size] or [global_size]
    roomy = [count for count in enough if count * smallest <= global_size] or enough[:1]

    def busy(count: int) -> float:
        worlds = range(min_workers, max_workers + 1)
        return sum(count / (world * -(-count // world)) for world in worlds) / len(worlds)

    best = max(busy(count) for count in roomy)
    return min(count for count in roomy if busy(count) >= best - 0.02)
