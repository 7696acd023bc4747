"""What was seen of passes of several sizes, and of links, and the profile and the link that follow. Pure.

`rubato.profiling` and `rubato.strategies.probe` measure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import get_args

from rubato.errors import UserError
from rubato.planner.layers import merged
from rubato.planner.links import MAX_BYTES_PER_S, MIN_BYTES_PER_S, Exchange, Link, Moved, cost_of
from rubato.planner.profile import MAX_LAYERS, Layer, Profile
from rubato.wire.aggregation import CompressionSpec
from rubato.wire.spec import JobSpec


@dataclass(frozen=True)
class Seen:
    """Of one layer, the median over the steps, in seconds."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    forward_s: float
    backward_s: float
    inputs: int = 0
    """Elements of a sample; 0: not one tensor."""
    outputs: int = 0
    input_bytes: int = 4
    """Of an element."""
    output_bytes: int = 4


@dataclass(frozen=True)
class Passes:
    """What a process saw of passes of one size."""

    samples: int
    layers: tuple[Seen, ...]
    """In the order of a forward pass."""
    update_s: float
    """From the reduced gradients to the end of the program's step."""
    parameters: int
    state_bytes: int
    """Of parameters, buffers and optimizer state."""
    device: str
    codec_s: dict[str, float] = field(default_factory=dict)
    """By method, seconds an element."""
    merge_s: dict[str, float] = field(default_factory=dict)
    """By method, for each list of another worker that is merged."""
    codec_settings: dict[str, float] = field(default_factory=dict)
    modules: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """As `Profile` has them."""
    spread: float = 0.0
    """The standard deviation of what passes took, over their mean."""
    element_bytes: int = 4
    """As `Profile` has it."""
    module_bytes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Likewise."""
    averaged_bytes: int = 0
    """Likewise."""
    kept_bytes: int | None = None
    """By a pass for its way back; None: it could not be told."""
    files: dict[str, str] = field(default_factory=dict)
    """As `Profile` has them."""


def link_of(rows: Sequence[Mapping[str, float | None]]) -> Link:
    """What a job of the recipe `measure-links` found: medians over its steps.

    Args:    rows: by metric, of each step; those with the last number of workers count.
    Raises:  UserError: nothing was measured.
    """
    measured = [row for row in rows if row.get("link_workers") is not None]
    rows = [row for row in measured if row["link_workers"] == measured[-1]["link_workers"]]
    values: dict[str, float] = {}
    for name in sorted({name for row in rows for name in row if name.startswith("link_")}):
        values[name] = statistics.median(value for row in rows if (value := row.get(name)) is not None)
    if not values.keys() >= _NEEDED:
        raise UserError(
            "this job has measured no links: `rubato submit --recipe measure-links --workers 4` runs one that does, "
            "with two workers at least"
        )
    bytes_per_s = min(max(values["link_bytes_per_s"], MIN_BYTES_PER_S), MAX_BYTES_PER_S)
    workers = round(values["link_workers"])
    start_s = {one: values[_time(one, "small")] for one in get_args(Exchange) if _time(one, "small") in values}
    moved = {one: _moved(one, workers, values) for one in start_s}
    moved = {one: sizes for one, sizes in moved.items() if sizes}
    return Link(values["link_latency_s"], bytes_per_s, start_s=start_s, moved=moved, measured_workers=workers)


_NEEDED = {"link_latency_s", "link_bytes_per_s", "link_workers", "link_large_bytes"}


def _time(exchange: str, size: str) -> str:
    """The metric's name."""
    return f"link_{exchange}_{size}_s"


def _moved(exchange: Exchange, workers: int, values: Mapping[str, float]) -> tuple[Moved, ...]:
    """Vectors of each size that was measured, but for those that took no less than a larger one."""
    found: list[Moved] = []
    port_bytes, took_s = inf, inf
    for size in ("large", "quarter", "sixteenth"):
        size_bytes, seconds = values.get(f"link_{size}_bytes"), values.get(_time(exchange, size))
        if size_bytes is None or seconds is None:
            continue
        moved = Moved(cost_of(exchange, workers, size_bytes).port_bytes, seconds - values[_time(exchange, "small")])
        if 0 < moved.port_bytes < port_bytes and 0 < moved.seconds < took_s:
            port_bytes, took_s = moved.port_bytes, moved.seconds
            found.insert(0, moved)
    return tuple(found)


def sizes_of(spec: JobSpec) -> list[int]:
    """Three sizes of passes, in samples, about those that workers of this job make."""
    usual = max(1, spec.batch.global_size // _pieces(spec) // spec.local_updates.sync_every)
    return sorted({max(1, usual // 2), usual, 2 * usual, *((3 * usual,) if usual == 1 else ())})


def codec_settings(told: CompressionSpec) -> dict[str, float]:
    """What the times of compression methods depend on; columns 0: `auto`."""
    columns = 0 if told.columns == "auto" else told.columns
    return {"density": told.density, "rank": told.rank, "rows": told.rows, "columns": columns}


def _pieces(spec: JobSpec) -> int:
    """Passes in which all samples of an update are gone through."""
    local, workers = spec.local_updates, spec.workers.upper
    match local.method:
        case "asynchronous":
            return 1
        case "synchronous":
            return max(1, workers - 1 - local.backups)
        case "layer_separation":
            return max(1, workers - local.keepers)
    return spec.num_microbatches if spec.reproducible else workers


def profile_of(seen: Sequence[Passes]) -> Profile:
    """One profile of passes of several sizes: a line through what each layer took, by least squares. Pure.

    Where there are more layers than a profile holds, neighbours are one.

    Raises:  UserError: fewer than two sizes, or of different models.
    """
    names = [layer.name for layer in seen[0].layers]
    if len({one.samples for one in seen}) < 2:
        raise UserError("a profile needs passes of two sizes at least")
    if any({layer.name for layer in one.layers} != set(names) for one in seen):
        raise UserError("the program has other layers with another size of its passes: it cannot be profiled")
    by_name = [{layer.name: layer for layer in one.layers} for one in seen]
    sizes = [float(one.samples) for one in seen]
    layers, rest_s = [], 0.0
    for name in names:
        ways = []
        for way in ("forward_s", "backward_s"):
            slope, rest = _line(sizes, [getattr(layers_[name], way) for layers_ in by_name])
            ways.append(slope)
            rest_s += rest
        one, (forward_s, backward_s) = by_name[0][name], ways
        widths = one.inputs, one.outputs, one.input_bytes, one.output_bytes
        layers.append(Layer(name, one.shapes, forward_s, backward_s, *widths))
    with_codecs = next((one for one in seen if one.codec_s), seen[0])
    parameters = max(1, seen[0].parameters)
    return Profile(
        merged(layers, MAX_LAYERS),
        start_s=rest_s / 2,  # once on each way
        update_s=statistics.median(one.update_s for one in seen) / parameters,
        codec_s=with_codecs.codec_s,
        merge_s=with_codecs.merge_s,
        codec_settings=with_codecs.codec_settings,
        element_bytes=seen[0].element_bytes,
        state_bytes=seen[0].state_bytes,
        averaged_bytes=seen[0].averaged_bytes,
        activation_bytes=_activation_bytes(seen),
        device=seen[0].device,
        modules=seen[0].modules,
        module_bytes=seen[0].module_bytes,
        spread=statistics.median(one.spread for one in seen),
        files=seen[0].files,
    )


def _activation_bytes(seen: Sequence[Passes]) -> tuple[int, ...]:
    """Of a pass of no samples, and of a sample more; nothing where a pass of some size did not tell."""
    kept = [(float(one.samples), float(one.kept_bytes)) for one in seen if one.kept_bytes is not None]
    if len(kept) < len(seen):
        return ()
    sample_bytes, rest_bytes = _line(*zip(*kept, strict=True))
    return round(rest_bytes), round(sample_bytes)


def _line(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """What a sample more takes, and a pass of none; neither is below 0."""
    slope, rest = statistics.linear_regression(sizes, values)
    if slope < 0:
        return 0.0, statistics.fmean(values)
    if rest < 0:
        return sum(map(float.__mul__, sizes, values)) / sum(size * size for size in sizes), 0.0
    return slope, rest
