"""What the literature compares, compared here: trees and separated layers with servers, sketches with top-k.

python -m benchmarks.published [--workers 4,8] [--mbit 10,100] [--rounds 3] [--write]

FireCaffe sets a reduction tree against one parameter server, Stanza layer separation against servers, gs-SGD a sketch
that is summed on a tree against gTop-k and Sketched-SGD. Each is measured on links that are emulated as in
`benchmarks.strategies`, always with the engine's own sum and half precision beside it. Their clusters are not to be had
here: for as many workers as they had, the planner says what the links alone would take (simulated). Needs root, and
`ip` and `tc` of iproute2.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from benchmarks.document import markdown_table, publish
from benchmarks.flags import numbers
from benchmarks.kept import Kept
from benchmarks.machine import machine, today, versions
from benchmarks.processes import nothing_left_behind
from benchmarks.strategies import DENSITY, PROFILE, Emulated, Seen, emulate, measure
from benchmarks.strategy_steps import PROGRAM, SAMPLE_S, STEPS, WARM, fields_of, profile_of_program, train
from rubato.planner.links import Link
from rubato.planner.methods import Strategy, exchange_s
from rubato.planner.options import name_of
from rubato.planner.predict import predict
from rubato.planner.profile import Layer, Profile
from rubato.planner.separated import cut_of
from tests.network import NoNamespaces

PLAIN = [Strategy(), Strategy(algorithm="ring"), Strategy(method="fp16")]
TREE, SERVER = Strategy(algorithm="tree"), Strategy(servers=1)
SKETCHES = [Strategy(method=one, density=DENSITY) for one in ("gtopk", "sketched_sgd", "sketch")]
EXCHANGES = [*PLAIN, TREE, SERVER, *SKETCHES]
FIRECAFFE = 128, Profile((Layer("GoogLeNet", ((13_500, 1_000),), 1e-6, 1e-6),)), Link(2e-6, 2.8e9)
"""Workers; 54 MB of gradients; what a node of its machine carried, as its speed-up lets one reckon."""
GS_SGD = 64, Profile((Layer("d", ((25_000, 1_000),), 1e-6, 1e-6),)), Link(5e-5, 1.25e8)
"""Workers; 100 MB, as ResNet-50 has; an Ethernet of 1 Gb/s."""
UPDATES, SAMPLES, MICROBATCHES = 8, 48, 12
"""Of a round of separated layers; of an update, whatever the strategy."""
FUNCTION, CUT = "train_convolutional", "classifier"


def exchanges(workers: Sequence[int], links: Sequence[Emulated], rounds: int) -> str:
    """Milliseconds of one exchange by strategy, with as many workers and on such links."""
    seen: dict[tuple[int, Emulated | None], Mapping[str, Seen]] = {}
    for count in workers:
        for link in (None, *links):
            print(f"{count} workers, {_told(link)} ...", file=sys.stderr)
            seen[count, link] = measure(count, link, rounds, EXCHANGES, Kept(None, {})).seen
    heads = ["exchange", *(f"{count} workers, {_told(link)}" for count, link in seen)]
    rows = []
    for name in map(name_of, EXCHANGES):
        rows.append([f"`{name}`", *(f"{1e3 * one[name].seconds:.0f}" for one in seen.values())])
    for one, other in (("server", "tree"), ("gtopk", "sketch"), ("sketched_sgd", "sketch")):
        ratios = (f"{each[one].seconds / each[other].seconds:.1f}" for each in seen.values())
        rows.append([f"`{one}` / `{other}`", *ratios])
    return markdown_table(heads, rows)


def simulated() -> str:
    """As many workers as the papers had, as the planner has it: of what computes nothing."""
    workers, profile, link = FIRECAFFE
    tree, server, plain = (1e3 * exchange_s(one, profile, workers, link) for one in (TREE, SERVER, PLAIN[0]))
    of_tree = f"`server` {server:.0f} ms, `tree` {tree:.0f} ms ({server / tree:.1f} times less), `auto` {plain:.0f} ms"
    rows = [[f"GoogLeNet, {workers} workers, 2.8 GB/s", of_tree]]
    workers, profile, link = GS_SGD
    told = {name_of(one): exchange_s(one, profile, workers, link) for one in (*SKETCHES, PLAIN[0])}
    of_sketch = ", ".join(
        f"`{name}` {1e3 * seconds:.0f} ms ({seconds / told['sketch']:.1f})" for name, seconds in told.items()
    )
    rows.append([f"25 million parameters, {workers} workers, 1 Gb/s (in brackets: of `sketch`)", of_sketch])
    return markdown_table(["simulated", ""], rows)


def updates(profile: Profile, workers: int, links: Sequence[Emulated]) -> str:
    """Milliseconds of an update of a small AlexNet by strategy, measured and predicted; and a server's, of these."""
    ways = {name_of(one): one for one in (PLAIN[0], PLAIN[2], SERVER)}
    ways[f"server, servers: {workers}"] = Strategy(servers=workers)
    ways["layer_separation"] = Strategy(local="layer_separation", sync_every=UPDATES, cut=cut_of(profile, CUT))
    cells: dict[str, list[str]] = {name: [] for name in ways}
    for link in links:
        seen: dict[str, float] = {}
        with emulate(workers, link) as net:
            for name, way in ways.items():
                size = SAMPLES * way.sync_every
                batch = {"global_size": size, "num_microbatches": MICROBATCHES}
                fields = {"entrypoint": f"{PROGRAM.name}:{FUNCTION}", "batch": batch, **fields_of(way)}
                if way.cut is not None:
                    fields["local_updates"]["cut"] = CUT
                seen[name] = train(net, workers, fields) / way.sync_every
                told = predict(profile, link.as_planned, way, workers, size, MICROBATCHES, several=True)
                cells[name].append(f"{1e3 * seen[name]:.0f}, {1e3 * told.step_s / way.sync_every:.0f}")
                print(f"{name}, {_told(link)}: {cells[name][-1]} ms", file=sys.stderr)
        for name, seconds in seen.items():
            cells[name][-1] += f"; {seen['server'] / seconds:.1f}"
    heads = ["strategy", *(f"{_told(link)}: measured, predicted; `server` / this" for link in links)]
    return markdown_table(heads, ([f"`{name}`", *row] for name, row in cells.items()))


def _told(link: Emulated | None) -> str:
    return "no limit" if link is None else f"{link.mbit:g} Mb/s"


def main() -> int:
    parser = argparse.ArgumentParser(description="What the literature compares, compared here.")
    parser.add_argument("--workers", type=numbers, default=[4, 8])
    parser.add_argument("--mbit", type=numbers, default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    flags = parser.parse_args()
    load = os.getloadavg()[0]
    links = [Emulated(mbit, 0) for mbit in flags.mbit]
    try:
        with nothing_left_behind():
            layers = updates(profile_of_program(FUNCTION), flags.workers[0], links)
            sums = exchanges(flags.workers, links, flags.rounds)
    except NoNamespaces as error:
        print(f"what was published is NOT measured here: {error}", file=sys.stderr)
        return 1
    text = (
        f"{today()}, {machine(load)}; {versions(['torch'])}. Links emulated, without latency; milliseconds.\n\n"
        f"An exchange of {PROFILE.parameters:,} parameters, density {DENSITY:g}, medians of {flags.rounds}:\n\n{sums}"
        f"\n\n{simulated()}\n\n"
        f"An update of a hundredth of AlexNet, {flags.workers[0]} workers, {SAMPLES} samples of {2e3 * SAMPLE_S:g} ms "
        f"in its convolutional layers, medians of {STEPS - round(WARM * STEPS)} steps:\n\n{layers}"
    )
    publish("published", text, writes=flags.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
