"""Whole steps of each strategy on slow links, beside what the planner predicts from a profile of one worker.

python -m benchmarks.strategy_steps [--workers 4] [--mbit 10,50,100] [--latency-ms 0,2,5] [--only ring,topk]
    [--json FILE] [--write]

All nine links take two hours, `--mbit 50 --latency-ms 0,5` a third of one hour. `--json FILE` keeps each value as it is
measured, the profile too, and what it has already is not measured again.
Real training processes in network namespaces, led as `rubato run` leads them. Passes take a time of their own (they
sleep), as the cores here are too few for four workers; links are emulated as in `benchmarks.strategies`. The planner
knows the profile, and of the links what a probe finds, as `rubato plan --links-of JOB` does. Needs root, and `ip` and
`tc` of iproute2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.document import markdown_table, publish
from benchmarks.flags import numbers, words
from benchmarks.kept import Kept, add_json_flag
from benchmarks.machine import machine, processor, today, versions
from benchmarks.processes import nothing_left_behind
from benchmarks.strategies import ASSUMED, STRATEGIES, Emulated, apart, emulate, machines_of, probe, spec_of
from rubato.cli.app import run
from rubato.planner.links import Link
from rubato.planner.measured import link_of
from rubato.planner.methods import Strategy
from rubato.planner.options import name_of
from rubato.planner.predict import predict
from rubato.planner.profile import Profile
from rubato.testing import LocalJob
from rubato.wire.codec import from_json, to_json
from tests.network import COMMAND, MACHINES, NAMESPACES, Network, NoNamespaces

PROGRAM = Path(__file__).parent / "programs" / "paced.py"
STEPS, LEAST, LEAST_LOCAL = 30, 6, 3
"""Of a job; fewer where they take long, fewest where each is many updates."""
LONG_S = 20.0
"""So long a job trains, if that is more than the fewest steps."""
WARM = 1 / 3
"""The share of the steps that are not measured, the first ones."""
SAMPLE_S = 0.002
"""Of a pass, each way."""
BATCH: dict[str, Any] = {"global_size": 64, "num_microbatches": 16}
LOCAL = [
    Strategy(local="local_sgd", sync_every=8),
    Strategy(local="diloco", sync_every=8),
    Strategy(local="streaming_diloco", sync_every=8, fragments=4),
    Strategy(local="streaming_diloco", sync_every=8, fragments=4, delay=4),
    Strategy(local="synchronous", sync_every=4),
    Strategy(local="asynchronous", sync_every=32),
]
"""A step of these is many updates."""
WAYS = [*STRATEGIES, *LOCAL]
LOCAL_BATCH: dict[str, Any] = {"global_size": 512, "num_microbatches": 4}
SYNCHRONOUS_BATCH: dict[str, Any] = {**LOCAL_BATCH, "global_size": 256}
"""Its steps take longest: an update of 64 samples, as the others have them, takes all workers' vectors to and fro."""
_PROFILE = ("one worker", "profile")
"""As it is kept."""
_LINKS = "links"
"""What a probe found of a link is kept by this name, beside the ways to train on it."""
LIKE_TOPK = ("hierarchical_topk", "threshold")
"""Profiles have no time of these, as no plan is made of them; they look for large elements likewise."""


def label(strategy: Strategy) -> str:
    """What a way to train is called in tables and flags."""
    return name_of(strategy) + (f" with a delay of {strategy.delay}" if strategy.delay else "")


NAMES = [label(one) for one in WAYS]


def spec(**fields: Any) -> dict[str, Any]:
    """Of the job."""
    return {
        "name": "steps",
        "entrypoint": f"{PROGRAM.name}:train",
        "config": {"steps": STEPS, "sample_s": SAMPLE_S},
        "reproducible": False,
        **fields,
    }


def profile_kept(kept: Kept[Any]) -> Profile:
    """The one that all of a table is predicted from, though it be measured in several runs."""
    found = kept.get(*_PROFILE)
    if found is None:
        profile = profile_of_program()
        kept.put(*_PROFILE, to_json(profile))
        return profile
    return from_json(Profile, found, strict=True)


def profile_of_program(function: str = "train") -> Profile:
    """As `rubato profile` measures it."""
    settings = [f"--set=batch.{key}={value}" for key, value in BATCH.items()]
    config = [f"--config=steps={STEPS}", f"--config=sample_s={SAMPLE_S}"]
    with tempfile.TemporaryDirectory() as folder, chdir(PROGRAM.parent):
        file = Path(folder) / "profile.json"
        flags = ["--set=reproducible=false", *settings, *config, f"--output={file}"]
        if run(["profile", f"{PROGRAM.name}:{function}", *flags]) != 0:
            raise SystemExit("the program could not be profiled")
        found = from_json(Profile, json.loads(file.read_text()), strict=True)
    return replace(found, codec_s=found.codec_s | dict.fromkeys(LIKE_TOPK, found.codec_s["topk"]))


def fields_of(strategy: Strategy) -> dict[str, Any]:
    """Of the spec of a job that trains by it."""
    if strategy.local == "none":
        return {"aggregation": spec_of(strategy)}
    return {
        "local_updates": {
            "method": strategy.local,
            "sync_every": strategy.sync_every,
            "fragments": strategy.fragments,
            "delay": strategy.delay,
        }
    }


def steps_of(strategy: Strategy, step_s: float) -> int:
    """How many steps a job makes that trains by it, where one is predicted to take so long."""
    return min(STEPS, max(LEAST if strategy.local == "none" else LEAST_LOCAL, round(LONG_S / step_s)))


def train(
    net: Network, workers: int, strategy: dict[str, Any], steps: int = STEPS, machines: Sequence[int] = ()
) -> float:
    """Median seconds of a step.

    Args:    machines: by worker, the number of the one it is on; none: each has its own.
    """
    with tempfile.TemporaryDirectory() as home:
        fields = spec(
            **{"config": {"steps": steps, "sample_s": SAMPLE_S}, **strategy},
            workers={"initial": workers, "min": workers, "max": workers},
            env={NAMESPACES: net.name, MACHINES: ",".join(map(str, machines))},
        )
        job = LocalJob(Path(home), PROGRAM, patience_s=1800.0, **fields)
        job.run._command = COMMAND
        with job:
            job.result()
            rows = job.rows()[round(WARM * steps) :]
    return float(statistics.median(row["values"]["step_seconds"] for row in rows))


def tables(
    profile: Profile,
    workers: int,
    links: Sequence[Emulated],
    kept: Kept[Any],
    ways: Sequence[Strategy] = WAYS,
    *,
    measures: bool = True,
) -> str:
    """Milliseconds of so many samples as a step has, measured and predicted: a table for each latency; their ratio.

    Args:
        kept: what it has is not measured again, and what is measured it keeps.
        measures: else what it lacks is left out.
    """
    ratios: list[float] = []
    parts = [
        f"Latency {latency_ms:g} ms one way:\n\n"
        + _table(
            profile,
            workers,
            [link for link in links if link.latency_ms == latency_ms],
            kept,
            ways,
            ratios,
            measures=measures,
        )
        for latency_ms in dict.fromkeys(link.latency_ms for link in links)
    ]
    return "\n\n".join([*parts, f"Measured against predicted: {apart(ratios)}."])


def _table(
    profile: Profile,
    workers: int,
    links: Sequence[Emulated],
    kept: Kept[Any],
    ways: Sequence[Strategy],
    ratios: list[float],
    *,
    measures: bool,
) -> str:
    heads = ["strategy", *(f"{link.mbit:g} Mb/s: measured, predicted" for link in links)]
    cells: dict[str, list[str]] = {label(one): [] for one in ways}
    for link in links:
        found = link_kept(workers, link, kept, measures=measures)
        if measures:
            measure(profile, workers, link, found, kept, ways)
        for strategy in ways:
            told, seconds = predicted_s(profile, workers, found, strategy), kept.get(link.place, label(strategy))
            if seconds is not None:
                ratios.append(seconds / told)
            here = "not measured" if seconds is None else f"{1e3 * seconds:.0f}"
            cells[label(strategy)].append(f"{here}, {1e3 * told:.0f}")
    return markdown_table(heads, ([f"`{name}`", *row] for name, row in cells.items()))


def link_kept(workers: int, link: Emulated, kept: Kept[Any], *, measures: bool) -> Link:
    """As a probe finds it, once; where nothing more is measured and it was not probed, as it is limited."""
    rows = kept.get(link.place, _LINKS)
    if rows is None and measures:
        with emulate(workers, link) as net:
            rows = probe(net, workers)
        kept.put(link.place, _LINKS, rows)
    return link.as_planned if rows is None else link_of(rows)


def measure(
    profile: Profile, workers: int, link: Emulated, planned: Link, kept: Kept[Any], ways: Sequence[Strategy] = WAYS
) -> None:
    """Seconds of so many samples as a step has, by strategy: what is not kept yet is measured, and kept.

    Args:    planned: the link, as the planner has it.
    """
    place = link.place
    with ExitStack() as stack:
        net: Network | None = None
        for strategy in ways:
            if kept.get(place, label(strategy)) is None:
                net = net or stack.enter_context(emulate(workers, link))
                batch = batch_of(strategy)
                share = BATCH["global_size"] / batch["global_size"]
                told = predicted_s(profile, workers, planned, strategy)
                fields, steps = {"batch": batch, **fields_of(strategy)}, steps_of(strategy, told / share)
                seconds = share * train(net, workers, fields, steps, machines_of(strategy, workers))
                kept.put(place, label(strategy), seconds)
                print(f"{label(strategy)} at {place}: {1e3 * seconds:.0f}, {1e3 * told:.0f}", file=sys.stderr)


def predicted_s(profile: Profile, workers: int, link: Link, strategy: Strategy) -> float:
    """Seconds of so many samples as a step has."""
    size, count = batch_of(strategy)["global_size"], batch_of(strategy)["num_microbatches"]
    step_s = predict(profile, link, strategy, workers, size, count, several=True).step_s
    return float(step_s * BATCH["global_size"] / size)


def batch_of(strategy: Strategy) -> dict[str, Any]:
    """Of a step."""
    if strategy.local == "none":
        return BATCH
    return SYNCHRONOUS_BATCH if strategy.local == "synchronous" else LOCAL_BATCH


def parser() -> argparse.ArgumentParser:
    """Of the flags."""
    parser = argparse.ArgumentParser(
        description="Whole steps of strategies on slow links, measured and predicted: two hours for the nine links of "
        "the defaults, a third of one for --mbit 50 --latency-ms 0,5."
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbit", type=numbers, default=[10, 50, 100], help="10,50,100; the first ones take longest")
    parser.add_argument("--latency-ms", type=numbers, default=[0, 2, 5], help="0,2,5; one way")
    parser.add_argument("--only", type=words(NAMES), default=NAMES, help="these ways to train: ring,topk,local_sgd")
    add_json_flag(parser)
    parser.add_argument("--kept-only", action="store_true", help="measure nothing more: say of what --json lacks so")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    return parser


def links_of(flags: argparse.Namespace) -> list[Emulated]:
    """Every throughput with every latency."""
    return [Emulated(mbit, latency_ms) for latency_ms in flags.latency_ms for mbit in flags.mbit]


def main() -> int:
    flags = parser().parse_args()
    load = os.getloadavg()[0]
    kept = Kept[Any](flags.json, {"workers": flags.workers, "machine": processor(), "cores": os.cpu_count()})
    try:
        with nothing_left_behind():
            profile = profile_kept(kept)
            ways = [one for one in WAYS if label(one) in flags.only]
            text = tables(profile, flags.workers, links_of(flags), kept, ways, measures=not flags.kept_only)
    except NoNamespaces as error:
        print(f"steps are NOT measured here: {error}", file=sys.stderr)
        return 1
    head = (
        f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.workers} workers, {profile.parameters:,} "
        f"parameters, {BATCH['global_size']} samples a step of {2e3 * SAMPLE_S:g} ms (with updates of their own "
        f"{LOCAL_BATCH['global_size']}, `synchronous` {SYNCHRONOUS_BATCH['global_size']}, told by "
        f"{BATCH['global_size']}); {ASSUMED}, and both are predicted to compute as long as `topk`; links emulated; "
        f"milliseconds, medians of the last two thirds of {LEAST_LOCAL} to {STEPS} steps, as many as {LONG_S:g} s have."
    )
    publish("strategy-steps", f"{head}\n\n{text}", writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
