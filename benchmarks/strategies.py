"""What each strategy's exchange takes on slow links, beside what the planner predicts; and the bytes it sends.

python -m benchmarks.strategies [--workers 4] [--mbit 10,50,100] [--latency-ms 0,2,5] [--rounds 5] [--only ring,topk]
    [--json FILE] [--write]

Four processes in network namespaces, with a token bucket at each port, and for latency a process that carries the
packets (emulated: there are no such links here). The prediction is what the same exchange takes without a limit, with
all that is computed in it, and what the planner says that the link adds. The cores here are too few for what four
workers compute at once, so the messages are also measured alone: as many bytes, between the same ranks, in the same
order, with nothing computed. Each strategy has connections of its own, as in a job of its own: what TCP finds out of a
link by one would count for the next. `--json FILE` keeps each value as it is measured, what is probed too, and what it
has already is not measured again. Needs root, and `ip` and `tc` of iproute2.

Workers are on a machine each, but with `hierarchical_topk` two of them are, who share its port. What `threshold` sends
depends on the gradients: here so much that it sends the most that it may.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from benchmarks.document import markdown_table, publish
from benchmarks.flags import numbers, words
from benchmarks.kept import Kept, add_json_flag
from benchmarks.machine import machine, processor, today, versions
from rubato.planner.links import Link
from rubato.planner.measured import link_of
from rubato.planner.methods import Strategy, exchange_s
from rubato.planner.options import name_of
from rubato.planner.profile import Layer, Profile
from tests.exchanges import exchange
from tests.network import Network, NoNamespaces, far_network, network

SHAPES = [[512, 512], [512], [256, 512], [256], [10, 256], [10]]
"""Of an MLP of about 400,000 parameters."""
DENSITY, RANK = 0.01, 4
MACHINES = 2
"""Of `hierarchical_topk`."""
PROBES = 3
"""Of the links: what a job of the recipe `measure-links` does in so many steps."""
LOW, MOST = 1e-9, 0.1
"""A threshold that more elements reach than may travel in a step, and the share of these, as `strategies.threshold` has
it."""
STRATEGIES = [
    Strategy(),
    Strategy(algorithm="ring"),
    Strategy(algorithm="tree"),
    Strategy(algorithm="halving_doubling"),
    Strategy(algorithm="native"),
    Strategy(servers=1),
    Strategy(method="fp16"),
    Strategy(method="bf16"),
    Strategy(method="powersgd", rank=RANK),
    Strategy(method="topk", density=DENSITY),
    Strategy(method="gtopk", density=DENSITY),
    Strategy(method="hierarchical_topk", density=DENSITY, machines=MACHINES),
    Strategy(method="threshold", density=MOST),
    Strategy(method="sketch", density=DENSITY),
    Strategy(method="sketched_sgd", density=DENSITY),
    Strategy(method="onebit"),
]
NAMES = [name_of(one) for one in STRATEGIES]
ASSUMED = (
    f"`hierarchical_topk` on {MACHINES} machines, whose workers share a port each (sent: by a machine); `threshold` so "
    f"low that as many elements travel as may, {MOST:.0%}"
)
PROFILE = Profile(tuple(Layer(str(number), (tuple(shape),), 1e-6, 1e-6) for number, shape in enumerate(SHAPES)))


@dataclass(frozen=True)
class Emulated:
    """A link between any two workers."""

    mbit: float
    """Megabits a second, each way."""
    latency_ms: float
    """One way."""

    @property
    def place(self) -> str:
        """What is measured on it is kept by this name."""
        return f"{self.mbit:g} Mb/s, {self.latency_ms:g} ms"

    @property
    def as_planned(self) -> Link:
        """As the planner has it."""
        return Link(self.latency_ms / 1e3, self.mbit * 1e6 / 8)


@dataclass(frozen=True)
class Seen:
    """Of one strategy on one link."""

    seconds: float
    """Of the slowest worker, the median over the rounds."""
    messages_s: float
    """Likewise, of its messages alone."""
    sent: float
    """Bytes of the busiest worker, or machine."""


def spec_of(strategy: Strategy) -> dict[str, object]:
    """As a job spec has it."""
    if strategy.servers:
        return {"algorithm": "server", "servers": strategy.servers}
    if strategy.method == "none":
        return {"algorithm": name_of(strategy)}
    compression = {"method": strategy.method, "density": strategy.density, "rank": strategy.rank}
    return {"compression": {**compression, **({"threshold": LOW} if strategy.method == "threshold" else {})}}


def machines_of(strategy: Strategy, workers: int) -> tuple[int, ...]:
    """By rank, the number of the machine it is on, from 1."""
    machines = strategy.machines or workers
    return tuple(1 + rank * machines // workers for rank in range(workers))


SECONDS, MESSAGES_S = attrgetter("seconds"), attrgetter("messages_s")


@contextmanager
def emulate(workers: int, link: Emulated | None) -> Iterator[Network]:
    """A network with links of a kind; None: without a limit.

    Raises:  NoNamespaces: it cannot be made here.
    """
    if link is not None and link.latency_ms > 0:
        with far_network(workers, link.mbit, link.latency_ms / 1e3) as net:
            yield net
        return
    with network(workers) as net:
        net.enlarge_packets()
        if link is not None:
            net.limit(link.mbit)
        yield net


def probe(net: Network, workers: int) -> list[dict[str, float | None]]:
    """What a job of the recipe `measure-links` measures of the links between workers on a machine each, by step."""
    rows: list[dict[str, float | None]] = exchange(net, workers, {}, SHAPES, 0, probes=PROBES, timeout_s=3600.0)[0][""]
    return rows


_PROBED = "probed"
"""What a probe found of a link is kept by this name, beside the strategies."""


@dataclass(frozen=True)
class Measured:
    """On links of one kind."""

    link: Link
    """As a probe found them, like a job of the recipe `measure-links`."""
    seen: dict[str, Seen]
    """By strategy."""


def measure(
    workers: int, link: Emulated | None, rounds: int, strategies: Sequence[Strategy], kept: Kept[Any]
) -> Measured:
    """Each strategy on links of a kind; None: without a limit. What is kept already is taken from there."""
    here = link.place if link else "no limit"
    missing = [one for one in strategies if kept.get(here, name_of(one)) is None]
    if missing or kept.get(here, _PROBED) is None:
        with emulate(workers, link) as net:
            if kept.get(here, _PROBED) is None:
                kept.put(here, _PROBED, probe(net, workers))
            for machines in dict.fromkeys(machines_of(one, workers) for one in missing):
                specs = {name_of(one): spec_of(one) for one in missing if machines_of(one, workers) == machines}
                answers = exchange(net, workers, specs, SHAPES, rounds, machines=machines, timeout_s=3600.0)
                for name in specs:
                    kept.put(here, name, asdict(_seen([answer[name] for answer in answers])))
    found = {name: kept.get(here, name) for name in map(name_of, strategies)}
    return Measured(
        link_of(kept.get(here, _PROBED) or []), {name: Seen(**seen) for name, seen in found.items() if seen}
    )


def _seen(answers: Sequence[dict[str, Any]]) -> Seen:
    """Of what each worker says."""
    return Seen(
        _slowest([one["seconds"] for one in answers]),
        _slowest([one["messages_seconds"] for one in answers]),
        max(one["sent"] for one in answers),
    )


def _slowest(rounds: Sequence[Sequence[float]]) -> float:
    """The median over the rounds, which are as long as for the slowest worker."""
    return float(statistics.median(map(max, zip(*rounds, strict=True))))


def tables(free: dict[str, Seen], limited: dict[Emulated, Measured], workers: int) -> str:
    """Measured and predicted, in milliseconds, two tables for each latency; the ratio of both, over all.

    Messages are predicted from what was probed of the links; what is computed besides takes as long as without a limit.
    """
    parts: list[str] = []
    off: list[float] = []
    off_alone: list[float] = []
    for latency_ms in dict.fromkeys(link.latency_ms for link in limited):
        links = {link: one for link, one in limited.items() if link.latency_ms == latency_ms}
        parts.append(f"Latency {latency_ms:g} ms one way:")
        for head, seconds, ratios in (("exchange", SECONDS, off), ("its messages alone", MESSAGES_S, off_alone)):
            parts.append(_table(head, free, links, workers, seconds, ratios))
    told = f"Measured against predicted: the messages {apart(off_alone)}; with what is computed {apart(off)}."
    return "\n\n".join([*parts, told])


def apart(ratios: Sequence[float]) -> str:
    """How far measured and predicted times are apart, told by the ratios of both."""
    off = sorted(max(ratio, 1 / ratio) for ratio in ratios)
    return f"{statistics.median(off):.2f} times apart at the median, {off[-1]:.2f} at most"


def _table(
    head: str,
    free: dict[str, Seen],
    limited: dict[Emulated, Measured],
    workers: int,
    seconds: Callable[[Seen], float],
    ratios: list[float],
) -> str:
    heads = [head, "sent, kB", "no limit", *(f"{link.mbit:g} Mb/s: measured, predicted" for link in limited)]
    rows = []
    for strategy in STRATEGIES:
        name = name_of(strategy)
        if name not in free:
            continue
        cells = [f"`{name}`", f"{free[name].sent / 1e3:.0f}", f"{1e3 * seconds(free[name]):.0f}"]
        computed_s = max(0.0, seconds(free[name]) - free[name].messages_s)
        for one in limited.values():
            predicted = computed_s + exchange_s(strategy, PROFILE, workers, one.link)
            ratios.append(seconds(one.seen[name]) / predicted)
            cells.append(f"{1e3 * seconds(one.seen[name]):.0f}, {1e3 * predicted:.0f}")
        rows.append(cells)
    return markdown_table(heads, rows)


def terms(workers: int, rounds: int) -> dict[str, Any]:
    """What values depend on that are kept."""
    of_machine = {"machine": processor(), "cores": os.cpu_count(), "versions": versions(["torch"])}
    of_vectors = {"parameters": PROFILE.parameters, "density": DENSITY, "rank": RANK, "probes": PROBES}
    return {"workers": workers, "rounds": rounds, **of_machine, **of_vectors}


def main() -> int:
    parser = argparse.ArgumentParser(description="Exchanges of strategies on slow links, measured and predicted.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbit", type=numbers, default=[10, 50, 100])
    parser.add_argument("--latency-ms", type=numbers, default=[0, 2, 5])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", type=words(NAMES), default=NAMES, help="these strategies: ring,topk")
    add_json_flag(parser)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    flags = parser.parse_args()
    kept = Kept[Any](flags.json, terms(flags.workers, flags.rounds))
    chosen = [one for one in STRATEGIES if name_of(one) in flags.only]
    load = os.getloadavg()[0]
    try:
        free = measure(flags.workers, None, flags.rounds, chosen, kept).seen
        limited = {}
        for link in (Emulated(mbit, latency_ms) for latency_ms in flags.latency_ms for mbit in flags.mbit):
            print(f"{link.mbit:g} Mb/s, {link.latency_ms:g} ms ...", file=sys.stderr)
            limited[link] = measure(flags.workers, link, flags.rounds, chosen, kept)
    except NoNamespaces as error:
        print(f"strategies are NOT measured here: {error}", file=sys.stderr)
        return 1
    elements = PROFILE.parameters
    head = (
        f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.workers} workers, {elements:,} parameters, density "
        f"{DENSITY:g}, rank {RANK}; {ASSUMED}; links emulated; milliseconds, medians of {flags.rounds}."
    )
    publish("strategies", f"{head}\n\n{tables(free, limited, flags.workers)}", writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
