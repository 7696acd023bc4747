"""Training between two exchanges: the `local_updates` of a job spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rubato.errors import check_rules

if TYPE_CHECKING:
    from rubato.wire.spec import JobSpec

LocalMethod = Literal[
    "none", "local_sgd", "diloco", "streaming_diloco", "synchronous", "asynchronous", "layer_separation"
]
LED: frozenset[LocalMethod] = frozenset({"synchronous", "asynchronous", "layer_separation"})
"""In whose steps one worker does what is not the others': the owner of all microbatches."""
CutFormat = Literal["none", "bf16", "int8"]
FrontFormat = Literal["none", "bf16"]
MAX_UPDATES = 100_000
MAX_STALENESS = 100_000
MAX_FRAGMENTS = 1_000


@dataclass(frozen=True)
class OuterSpec:
    """Of `diloco`: the optimizer that takes the mean of how far the microbatches came for a gradient."""

    lr: float = 0.7
    """Its learning rate."""
    momentum: float = 0.9
    """Its momentum (Nesterov's), 0 to below 1."""

    def __post_init__(self) -> None:
        check_rules(
            (0 < self.lr < float("inf"), "lr", f"must be more than 0, got {self.lr}"),
            (0 <= self.momentum < 1, "momentum", f"must be at least 0 and below 1, got {self.momentum}"),
        )


@dataclass(frozen=True)
class LocalUpdatesSpec:
    """Many updates in a step of the job: by microbatches that train by themselves, by a parameter server, or by workers
    that share out the layers."""

    method: LocalMethod = "none"
    """`local_sgd`: all go on from the mean of their weights. `diloco`: an outer optimizer takes the mean of how far
    they came for a gradient. `streaming_diloco`: likewise, but each worker keeps weights of its own, and a step
    exchanges one of `fragments` of them. `synchronous`: one worker makes each update of the gradients of the others,
    without waiting for the slowest `backups`. `asynchronous`: it applies their gradients as they come, and gives each
    its weights; nobody waits for anybody within a step. `layer_separation`: one worker (or some, `keepers`) has the
    layers at `cut`, the others all before them."""
    sync_every: int = 1
    """Updates of each microbatch in a step; of `synchronous`, `asynchronous` and `layer_separation`: updates in a step,
    whoever computes them. `batch.global_size` is the samples of all of them, of all microbatches."""
    outer: OuterSpec = OuterSpec()
    """The outer optimizer of `diloco` and `streaming_diloco`."""
    fragments: int = 1
    """Of `streaming_diloco`: parts of the weights, of which a step exchanges one, in turn."""
    mix: float = 0.0
    """Of `streaming_diloco`: the share of its own weights that a worker keeps of a fragment, 0 to below 1."""
    delay: int = 0
    """Of `streaming_diloco`: so many updates before the end of a step its fragment is told as it is then, and travels
    while these are made: 0 to below `sync_every`. What is learned in them stays with the worker until the next time."""
    backups: int = 0
    """Of `synchronous`: so many workers compute a second time what the slowest do, and the first of two counts."""
    staleness: int | None = None
    """Of `asynchronous`: so many gradients, 1 or more, a worker may be ahead of the slowest (bounded staleness). null:
    as many as it comes to."""
    damping: bool = False
    """Of `asynchronous`: a gradient that was computed t updates ago counts 1/t."""
    replay: str | None = None
    """Of `asynchronous`: folder or URI of a checkpoint of a job like this one. One worker makes its updates again, in
    their order, which gives the same bits."""
    cut: str | None = None
    """Of `layer_separation`, which needs it: name of the module that one worker computes, as `model.named_modules()`
    tells. Take the one with most of the parameters."""
    keepers: int = 1
    """Of `layer_separation`: so many workers compute that module, each for a part of the others; they sum their
    gradients of it. At most half of those that are there."""
    cut_format: CutFormat = "none"
    """Of `layer_separation`: how numbers travel to and from that module. `none`: as the program computes them. `bf16`:
    as bfloat16. `int8`: what goes in as 8-bit integers with a scale for each sample, all else as bfloat16."""
    front_format: FrontFormat = "none"
    """Of `layer_separation`: how the layers before that module travel among those that compute them. `none`: as they
    are. `bf16`: sums of their gradients, and how far their weights come in a step, as bfloat16."""

    def __post_init__(self) -> None:
        is_on = self.method != "none"
        check_rules(
            (1 <= self.sync_every <= MAX_UPDATES, "sync_every", f"must lie in 1..{MAX_UPDATES}, got {self.sync_every}"),
            (is_on or self.sync_every == 1, "sync_every", "needs a method: local_sgd, diloco, asynchronous ..."),
            (
                self.method in ("diloco", "streaming_diloco") or self.outer == OuterSpec(),
                "outer",
                f"{self.method} has no outer optimizer; say method: diloco, or leave it out",
            ),
            (
                self.fragments == 1 or self.method == "streaming_diloco",
                "fragments",
                f"{self.method} exchanges no fragments; say method: streaming_diloco, or leave it out",
            ),
            (
                1 <= self.fragments <= MAX_FRAGMENTS,
                "fragments",
                f"must lie in 1..{MAX_FRAGMENTS}, got {self.fragments}",
            ),
            (
                self.mix == 0.0 or self.method == "streaming_diloco",
                "mix",
                f"{self.method} mixes no fragments; say method: streaming_diloco, or leave it out",
            ),
            (0.0 <= self.mix < 1.0, "mix", f"must be at least 0 and below 1, got {self.mix}"),
            (
                self.delay == 0 or self.method == "streaming_diloco",
                "delay",
                f"{self.method} exchanges no fragments; say method: streaming_diloco, or leave it out",
            ),
            (
                self.delay == 0 or self.method != "streaming_diloco" or 0 <= self.delay < self.sync_every,
                "delay",
                f"must be at least 0 and below sync_every ({self.sync_every}), the updates of a step; got {self.delay}",
            ),
            (
                self.backups == 0 or self.method == "synchronous",
                "backups",
                f"{self.method} has no backup workers; say method: synchronous, or leave it out",
            ),
            (self.backups >= 0, "backups", f"must be at least 0, got {self.backups}"),
            (
                self.staleness is None or self.is_asynchronous,
                "staleness",
                f"{self.method} has no bound on staleness; say method: asynchronous, or leave it out",
            ),
            (
                self.staleness is None or 1 <= self.staleness <= MAX_STALENESS,
                "staleness",
                f"must lie in 1..{MAX_STALENESS}, got {self.staleness} (0 is to wait for all at each update: say "
                "method: synchronous, or, for one update in a step, aggregation.algorithm: server without "
                "local_updates)",
            ),
            (
                self.is_asynchronous or not self.damping,
                "damping",
                f"{self.method} knows no gradients of older weights; say method: asynchronous, or leave it out",
            ),
            (
                self.is_asynchronous or self.replay is None,
                "replay",
                f"{self.method} has no order of its own that could be repeated; leave it out",
            ),
            (
                self.cut is not None or self.method != "layer_separation",
                "cut",
                "is missing: layer_separation gives one worker the module that it names; take the one with most of the "
                "parameters, as model.named_modules() tells",
            ),
            (
                self.cut is None or self.method == "layer_separation",
                "cut",
                f"{self.method} separates no layers; say method: layer_separation, or leave it out",
            ),
            (
                self.keepers == 1 or self.method == "layer_separation",
                "keepers",
                f"{self.method} separates no layers; say method: layer_separation, or leave it out",
            ),
            (self.keepers >= 1, "keepers", f"must be at least 1, got {self.keepers}"),
            (
                self.cut_format == "none" or self.method == "layer_separation",
                "cut_format",
                f"{self.method} sends nothing between layers; say method: layer_separation, or leave it out",
            ),
            (
                self.front_format == "none" or self.method == "layer_separation",
                "front_format",
                f"with {self.method} all have all layers; say method: layer_separation, or leave it out",
            ),
        )

    @property
    def is_on(self) -> bool:
        """Whether a step has updates of its own."""
        return self.method != "none"

    @property
    def is_asynchronous(self) -> bool:
        """Whether they are made by a server, as gradients come."""
        return self.method == "asynchronous"

    @property
    def is_served(self) -> bool:
        """Whether one worker makes all updates, of gradients that the others compute."""
        return self.method in ("synchronous", "asynchronous")

    @property
    def is_led(self) -> bool:
        """Whether one worker does in a step what is not the others': the owner of all of its microbatches."""
        return self.method in LED


def local_updates_rules(spec: JobSpec) -> list[tuple[bool, str, str]]:
    """(holds, field, message): what does not go together with the rest of a job."""
    local = spec.local_updates
    if not local.is_on:
        return []
    updates = spec.num_microbatches * local.sync_every
    return [
        (
            not (local.is_led and spec.reproducible),
            "local_updates.method",
            f"{local.method} gives other bits with another number of workers: say reproducible: false, or method: "
            "local_sgd, which gives the same",
        ),
        (
            not (local.method == "streaming_diloco" and spec.reproducible),
            "local_updates.method",
            "with streaming_diloco each worker trains weights of its own, so that the bits follow their number: say "
            "reproducible: false, or method: diloco, which gives the same",
        ),
        (
            local.backups == 0 or local.backups <= spec.workers.upper - 2,
            "local_updates.backups",
            f"{local.backups} leave nobody to compute beside the one that makes the updates: workers.max is "
            f"{spec.workers.upper}, and must be at least {local.backups + 2}",
        ),
        (
            local.keepers == 1 or 2 * local.keepers <= spec.workers.upper,
            "local_updates.keepers",
            f"{local.keepers} leave too few to compute the layers before the cut: workers.max is {spec.workers.upper}, "
            f"and must be at least {2 * local.keepers}",
        ),
        (spec.backend == "rubato", "local_updates", "Ray Train exchanges the gradients itself; leave it out"),
        (
            spec.batch.global_size % updates == 0,
            "batch.global_size",
            f"must be a multiple of {updates}: {spec.num_microbatches} microbatches, {local.sync_every} updates of "
            f"equal size in a step; got {spec.batch.global_size}",
        ),
        (
            spec.aggregation.is_default,
            "aggregation",
            f"local_updates exchange weights, once in {local.sync_every} updates; leave {spec.aggregation.name} out",
        ),
        (
            spec.batch.noise_every == 0,
            "batch.noise_every",
            "with local_updates no gradients are exchanged; leave it out",
        ),
        (
            spec.lr_scaling.rule == "none",
            "lr_scaling",
            "with local_updates learning rates belong to a microbatch's own updates; leave it out",
        ),
    ]
