"""What to know of a spec that holds: what goes together, at which price. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rubato.wire.aggregation import KEEPING_NOTHING, SKETCHES
from rubato.wire.spec import JobSpec
from rubato.wire.units import plural, three_digits

FOUND = 0.05
"""The largest density at which a sketch finds 95 % of what stands out (docs/benchmarks.md, what a sketch finds)."""

FAR = 1.05
"""So many times as far as updates came, an outer optimizer goes markedly farther."""


def remarks_of(spec: JobSpec) -> list[str]:
    """Sentences, none for a spec that asks for nothing unusual."""
    return list(_of_bits(spec)) if spec.backend == "rubato" else []


def _of_bits(spec: JobSpec) -> Iterator[str]:
    name, compression = spec.aggregation.name, spec.aggregation.compression
    if not spec.reproducible:
        yield "The bits of the weights follow the number of workers, as reproducible is false."
    elif not spec.local_updates.is_on:
        yield from _of_shares(spec)
    if spec.batch.noise_every and spec.num_microbatches == 1:
        yield "The noise is what gradients of microbatches differ by, and there is one: batch.num_microbatches says so."
    if compression.method in ("fp16", "bf16"):
        yield f"Gradients are rounded to {name} before they are added up."
    elif compression.method not in KEEPING_NOTHING:
        yield (
            f"With {name} a part of each gradient travels later: it is kept over scalings and in checkpoints. At each "
            "of these it is shared out evenly, so that bits follow their moments, too (checkpoint.every_steps fixes "
            "those of checkpoints). Compare loss curves at equal samples with those of whole gradients."
        )
        twice = ", twice" if name == "onebit" or compression.momentum else ""
        yield (
            f"Before each checkpoint, {_interval(spec)}, all tell each other what they keep: as much as a whole "
            f"gradient{twice}. On a slow network save more seldom; `rubato plan` tells what it takes."
        )
        if compression.on_loss == "continue":
            yield (
                "A lost worker takes along what it had kept, and the others train on without it, which is told; "
                "compression.on_loss: rollback goes back to the newest checkpoint instead."
            )
        else:
            yield "A lost worker sends all back to the newest checkpoint, as compression.on_loss is rollback."
    elif not spec.aggregation.is_default:
        yield f"Gradients are exchanged whole by {name}, when the backward pass is over and not beside it."
    for setting, methods in spec.aggregation.unused.items():
        yield (
            f"aggregation.compression.{setting} does nothing in training with method: {compression.method}; it is for "
            f"{', '.join(sorted(methods))}: say one of them, or leave it out."
        )
    if spec.aggregation.servers > spec.workers.upper:
        yield (
            f"aggregation.servers: {spec.aggregation.servers} is more than there may be workers (workers.max): at most "
            f"{spec.workers.upper} add up for all."
        )
    is_sketch = compression.method in SKETCHES and compression.columns == "auto"
    if is_sketch and compression.density > FOUND:
        yield (
            f"A density of {compression.density:g} is too large for a sketch: with columns: auto it finds what stands "
            f"out up to {FOUND:g}. topk applies the largest elements at any density."
        )
    if compression.momentum:
        yield (
            "The optimizer must have no momentum of its own: compression.momentum is in the exchange. Its weight decay "
            f"acts behind it, without momentum: {1 / (1 - compression.momentum):.3g} times the value does what it did."
        )
    local, updates = spec.local_updates, plural(spec.local_updates.sync_every, "update")
    if local.is_asynchronous:
        bound = "however old" if local.staleness is None else f"at most {local.staleness} steps ahead of the slowest"
        yield (
            f"One worker makes the {updates} of a step, as gradients come from the others, {bound}: a "
            "step is so many updates, for schedules, checkpoints, scaling and losses, too. Which gradient comes first "
            "is up to the clock; a checkpoint has their order. Compare loss curves at equal samples with those without."
        )
        if spec.workers.upper < 3:
            yield "With two workers one computes and one makes updates, in turn: it pays from three on."
    elif local.method == "streaming_diloco":
        yield (
            f"Each worker makes {updates} of its own in a step, then all exchange one of "
            f"{local.fragments} fragments: a step is so many updates, for schedules, checkpoints, scaling and losses, "
            "too. Where workers come or go, or something is saved or evaluated, all go on from the mean of their "
            "weights; a lost worker takes along what it had not told yet, which is told."
        )
        if local.delay:
            yield (
                f"A fragment is told as it is {local.delay} updates before the end of a step, and travels while these "
                "are made: choose so many that they take as long as the exchange (`rubato plan`), and no more."
            )
        yield (
            f"Before each checkpoint, {_interval(spec)}, that is an exchange of all weights and of what optimizers "
            "keep: on a slow network save more seldom; `rubato plan` tells what it takes."
        )
    elif local.method == "synchronous":
        late = f", and waits for none of the slowest {local.backups}" if local.backups else ""
        yield (
            f"One worker makes the {updates} of a step, each of the gradients of all the others{late}"
            ": a step is so many updates, for schedules, checkpoints, scaling and losses, too."
        )
        if spec.workers.upper < 3:
            yield "With two workers one computes and one makes updates, in turn: it pays from three on."
    elif local.method == "layer_separation":
        keep = "One worker computes" if local.keepers == 1 else f"{local.keepers} workers compute"
        yield (
            f"{keep} {local.cut} for all, the others all layers before it: in a step they make "
            f"{updates} together, and for schedules, checkpoints, scaling and losses it is so many."
        )
        if spec.workers.upper == 1:
            yield "One worker alone (workers.max) computes all layers: nothing is separated."
        formats = [("cut_format", local.cut_format), ("front_format", local.front_format)]
        if rounded := [f"{name}: {chosen}" for name, chosen in formats if chosen != "none"]:
            yield (
                f"With {' and '.join(rounded)} numbers are rounded where they travel, and one worker alone rounds "
                "none: compare loss curves with those without."
            )
    elif local.is_on:
        yield (
            f"Each of the {spec.num_microbatches} microbatches makes {updates} by itself in a step, then all exchange "
            "how far they came: a step is so many updates, for schedules, checkpoints, scaling and losses, too. "
            "Compare loss curves at equal samples with those without."
        )
        if local.method == "diloco" and (reach := local.outer.lr / (1 - local.outer.momentum)) > FAR:
            yield (
                f"Where steps go one way, the outer optimizer goes up to {three_digits(reach)} times as far as these "
                "updates came: if the loss grows again, lower the program's learning rate, or local_updates.outer.lr."
            )
        if local.sync_every == 1:
            yield "With sync_every: 1 all exchange after each update, which saves nothing: say 8, or 32."
    if spec.aggregation.needs_alike:
        yield f"With {name} all workers must run on nodes of one kind; others are refused."
    scaling = spec.lr_scaling
    if scaling.rule != "none":
        yield (
            f"Learning rates are multiplied as {scaling.rule} says, from a batch of {scaling.base_size} to one of "
            f"{spec.batch.global_size}."
        )


def _of_shares(spec: JobSpec) -> Iterator[str]:
    """Where the first workers have not all as many microbatches."""
    count, workers = spec.num_microbatches, spec.workers
    less, rest = divmod(count, workers.initial)
    if not rest:
        return
    even = [one for one in range(max(2, workers.min), workers.upper + 1) if count % one == 0]
    fewer, more = ([one for one in even if (one > workers.initial) is is_more] for is_more in (False, True))
    near = " or ".join(str(one) for one in (*fewer[-1:], *more[:1]))
    advice = f"{near} workers have equally many" if near else f"give a multiple of {workers.initial}"
    yield (
        f"Of {count} microbatches (batch.num_microbatches) {workers.initial} workers (workers.initial) have {less} or "
        f"{less + 1} each, so that some wait for others in each step: {advice}."
    )


def _interval(spec: JobSpec) -> str:
    told = spec.checkpoint
    if told.every_steps is not None:
        return f"every {told.every_steps} steps"
    return "at intervals that the job chooses" if told.every == "auto" else f"every {told.every:g} s"
