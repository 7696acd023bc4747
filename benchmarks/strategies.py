"""What each strategy's exchange takes on slow links, beside what the planner predicts; and the bytes it sends.

python -m benchmarks.strategies [--workers 4] [--mbit 10,50,100] [--rounds 5] [--write]

Four processes in network namespaces, with a token bucket at each port, both ways (emulated: there are no such links
here). The prediction is what the same exchange takes without a limit, with all that is computed in it, and what the
planner says that the limit adds. Needs root and `ip` and `tc` of iproute2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import dataclass
from math import log

from benchmarks.document import publish
from benchmarks.flags import numbers
from benchmarks.machine import machine, today, versions
from rubato.planner.choose import name_of
from rubato.planner.links import Link
from rubato.planner.methods import Strategy, exchange_s
from rubato.planner.profile import Layer, Profile
from tests.exchanges import exchange
from tests.network import NoNamespaces, network

SHAPES = [[512, 512], [512], [256, 512], [256], [10, 256], [10]]
"""Of an MLP of about 400,000 parameters."""
DENSITY, RANK = 0.01, 4
STRATEGIES = [
    Strategy(algorithm="ring"),
    Strategy(algorithm="tree"),
    Strategy(algorithm="halving_doubling"),
    Strategy(method="fp16"),
    Strategy(method="bf16"),
    Strategy(method="powersgd", rank=RANK),
    Strategy(method="topk", density=DENSITY),
    Strategy(method="gtopk", density=DENSITY),
    Strategy(method="sketch", density=DENSITY),
    Strategy(method="sketched_sgd", density=DENSITY),
    Strategy(method="onebit"),
]
PROFILE = Profile(tuple(Layer(str(number), (tuple(shape),), 1e-6, 1e-6) for number, shape in enumerate(SHAPES)))


@dataclass(frozen=True)
class Seen:
    """Of one strategy on one link."""

    seconds: float
    """Of the slowest worker, the median over the rounds."""
    sent: float
    """Bytes of the busiest worker."""


def spec_of(strategy: Strategy) -> dict[str, object]:
    """As a job spec has it."""
    if strategy.method == "none":
        return {"algorithm": strategy.algorithm}
    return {"compression": {"method": strategy.method, "density": strategy.density, "rank": strategy.rank}}


def measure(workers: int, mbit: float | None, rounds: int) -> dict[str, Seen]:
    """All strategies on links of so many megabits a second; None: without a limit."""
    with network(workers) as net:
        net.enlarge_packets()
        if mbit is not None:
            net.limit(mbit)
        specs = {name_of(one): spec_of(one) for one in STRATEGIES}
        answers = exchange(net, workers, specs, SHAPES, rounds, timeout_s=3600.0)
    return {
        name: Seen(
            statistics.median(map(max, zip(*(answer[name]["seconds"] for answer in answers), strict=True))),
            max(answer[name]["sent"] for answer in answers),
        )
        for name in specs
    }


def table(free: dict[str, Seen], limited: dict[float, dict[str, Seen]], workers: int) -> str:
    """Measured and predicted, in milliseconds; the ratio of both, over all."""
    heads = ["exchange", "sent, kB", "no limit", *(f"{mbit:g} Mb/s: measured, predicted" for mbit in limited)]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    ratios = []
    for strategy in STRATEGIES:
        name = name_of(strategy)
        cells = [f"`{name}`", f"{free[name].sent / 1e3:.0f}", f"{1e3 * free[name].seconds:.0f}"]
        for mbit, seen in limited.items():
            link = Link(0.0, mbit * 1e6 / 8)
            predicted = free[name].seconds + exchange_s(strategy, PROFILE, workers, link)
            ratios.append(seen[name].seconds / predicted)
            cells.append(f"{1e3 * seen[name].seconds:.0f}, {1e3 * predicted:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    off = [abs(log(ratio)) for ratio in ratios]
    lines.append(
        f"\nMeasured against predicted: median difference {100 * statistics.median(off):.1f} %, largest "
        f"{100 * max(off):.0f} %."
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Exchanges of strategies on slow links, measured and predicted.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbit", type=numbers, default=[10, 50, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    try:
        free = measure(flags.workers, None, flags.rounds)
        limited = {float(mbit): measure(flags.workers, mbit, flags.rounds) for mbit in flags.mbit}
    except NoNamespaces as error:
        print(f"strategies are NOT measured here: {error}", file=sys.stderr)
        return 1
    elements = PROFILE.parameters
    head = (
        f"{today()}, {machine(load)}; {versions(['torch'])}. {flags.workers} workers, {elements:,} parameters, density "
        f"{DENSITY:g}, rank {RANK}; links emulated; milliseconds, medians of {flags.rounds}."
    )
    publish("strategies", f"{head}\n\n{table(free, limited, flags.workers)}", writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
