"""Figures in the prose about strategies are those of the tables: each sentence is made of them here, and is there."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.document import DOCUMENT
from benchmarks.parity import LOCAL, TASKS, Values, statement, table
from benchmarks.parity import STRATEGIES as WHOLE_OR_LESS

ROOT = DOCUMENT.parents[1]
RECORD = ROOT / "benchmarks" / "measured" / "parity.json"
TABLES = DOCUMENT.read_text()
SUMS = ("auto", "ring", "tree", "halving_doubling", "server", "native")
METHODS = ("fp16", "bf16", "powersgd", "topk", "gtopk", "hierarchical_topk", "threshold", "sketch", "sketched_sgd")
COMPRESSED = (*METHODS, "onebit")
HEADS = ("exchange", "its messages alone", "strategy")
LINKS = [(mbit, latency) for mbit in (10, 50, 100) for latency in (0, 2, 5)]
SETTINGS = {"4", "5", "5 %", "16", "50 %", "32", "50", "100", "256", "400,000"}
"""Of what was measured, in the part of the page that ranks strategies."""


def prose(page: Path) -> str:
    """Without what breaks its lines."""
    return " ".join(page.read_text().split())


STRATEGIES = prose(ROOT / "docs" / "explanation" / "strategies.md")


def part(name: str) -> str:
    """What a script wrote into the page of tables."""
    return TABLES.split(f"<!-- {name}: written by a script -->")[1].split(f"<!-- {name}: end -->")[0]


def rows(text: str) -> Iterator[list[str]]:
    """Of all its tables, heads too; the name of a row without quotes."""
    for line in text.splitlines():
        if line.startswith("| "):
            first, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
            yield [first.strip("`"), *cells]


class OnLinks:
    """Milliseconds, measured and predicted, by name, Mb/s and latency: the table of this head for each latency."""

    def __init__(self, name: str, head: str) -> None:
        self._found: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.sent: dict[str, int] = {}
        """Kilobytes."""
        for text in part(name).split("Latency ")[1:]:
            is_ours, latency = False, int(text.split()[0])
            for first, *cells in rows(text):
                if first in HEADS:
                    is_ours = first == head
                elif is_ours:
                    for mbit, cell in zip((10, 50, 100), cells[-3:], strict=True):
                        measured, predicted = map(int, cell.split(", "))
                        self._found[first, mbit, latency] = measured, predicted
                    self.sent[first] = int(cells[0]) if len(cells) > 3 else 0

    def ms(self, name: str, mbit: int = 100, latency: int = 0) -> int:
        """Measured."""
        return self._found[name, mbit, latency][0]

    def ratios(self, *names: str, latencies: tuple[int, ...] = (0, 2, 5)) -> list[float]:
        """Measured, of predicted."""
        found = [(one, latency, pair) for (one, _, latency), pair in self._found.items()]
        return [measured / told for one, at, (measured, told) in found if one in names and at in latencies]


EXCHANGES, MESSAGES = OnLinks("strategies", "exchange"), OnLinks("strategies", "its messages alone")
STEPS = OnLinks("strategy-steps", "strategy")
_SEEDS, _KEPT = 5, Values(RECORD)
LEARNED = {recipe: table(recipe, _KEPT, [*WHOLE_OR_LESS, *LOCAL], _SEEDS) for recipe in TASKS}
"""As `make bench-parity` tells what it has kept."""
OTHERS_LEARNED = [*list(WHOLE_OR_LESS)[1:], *LOCAL]
"""Beside whole gradients."""


def mean(recipe: str, name: str) -> float:
    """Of the seeds."""
    return next(float(cells[0]) for first, *cells in rows(LEARNED[recipe]) if first == name)


def below(recipe: str, name: str) -> str:
    """By how many standard deviations it is worse than whole gradients; better, if it is."""
    worse = next(float(cells[2]) for first, *cells in rows(LEARNED[recipe]) if first == name)
    return f"{abs(worse):.1f} {'below' if worse >= 0 else 'better'}"


def as_whole_after(name: str) -> str:
    """In how many updates whole gradients had come as far, in both recipes."""
    found = (next(cells[3] for first, *cells in rows(LEARNED[recipe]) if first == name) for recipe in TASKS)
    return " and ".join(cell.split()[0] for cell in found)


def not_at_parity(recipe: str) -> list[str]:
    """With all updates of the first seeds."""
    return [name for name in OTHERS_LEARNED if not statement(recipe, _KEPT, name, _SEEDS).is_whole]


def loss(*names: str) -> str:
    """Of these in `char-lm`."""
    return " and ".join(f"{mean('char-lm', one):.2f}" for one in names)


IMAGES, NEAREST = "image-classifier", ("hierarchical_topk 5 %", "topk 5 %")
REST = ("topk", "gtopk", "sketch", "sketched_sgd")


def told_of_strategies() -> Iterator[str]:
    """In the order of the page."""
    ms, sent = EXCHANGES.ms, EXCHANGES.sent
    yield f"({ms('fp16')} ms and {ms('bf16')}, against {ms('auto')} with `auto`)"
    one = "synchronous with a backup"
    yield f"at parity in both recipes ({below(IMAGES, one)}, {below('char-lm', one)}): each sample counts once"
    fewer = " and ".join(f"{sent['auto'] / sent[name]:.0f}" for name in ("powersgd", "onebit"))
    far = f"{below(IMAGES, 'powersgd rank 4').split()[0]} and {below(IMAGES, 'onebit')}"
    losses, whole = loss("powersgd rank 4", "onebit"), loss("auto")
    yield (
        f"{fewer} times fewer bytes at parity there ({far}); in `char-lm` the loss is {losses} after as many updates, "
        f"of {whole}"
    )
    yield (
        f"at parity in `image-classifier` ({below(IMAGES, 'diloco').split()[0]} and "
        f"{below(IMAGES, 'streaming_diloco of 2')}); in `char-lm` `local_sgd` is the nearest ({loss('local_sgd')} of "
        f"{whole})"
    )
    yield f"the first two are the nearest ({loss(*NEAREST)} in `char-lm`)"
    most, least = max(sent[one] for one in REST), min(sent[one] for one in REST)
    yield (
        f"`hierarchical_topk` sends {sent['hierarchical_topk']} kB at 1 %, from a machine of two workers, and the "
        f"others {least} to {most}, where `powersgd` sends {sent['powersgd']}"
    )
    points = 100 * (mean(IMAGES, "auto") - mean(IMAGES, "asynchronous"))
    yield (
        f"({below(IMAGES, 'threshold 0.001')} and {loss('threshold 0.001')} with 0.001); what is computed from old "
        f"weights is {below(IMAGES, 'asynchronous')} ({points:.1f} points of accuracy), and {loss('asynchronous')}"
    )
    titles = {
        "`fp16`": "fp16",
        "`powersgd` of rank 4": "powersgd rank 4",
        "`onebit`": "onebit",
        "`topk` at 5 %": "topk 5 %",
        "`local_sgd`": "local_sgd",
        "`diloco`": "diloco",
        "`asynchronous`": "asynchronous",
    }
    yield f"in {' and in '.join(f'`{recipe}`' for recipe in TASKS)}: " + ", ".join(
        f"{title} {as_whole_after(one)}" for title, one in titles.items()
    )
    yield f"(`local_sgd` at twice the rate: {as_whole_after('local_sgd, twice the rate')})"
    near = [
        f"({below(IMAGES, one).split()[0]} and {below('char-lm', one)})"
        for one in ("powersgd rank 32", "topk 50 %", "hierarchical_topk 50 %")
    ]
    yield f"`powersgd` of rank 32 {near[0]}, `topk` at 50 % {near[1]} and `hierarchical_topk` at 50 % {near[2]}"
    delayed = "delayed streaming_diloco of 2"
    yield f"without, the loss in `char-lm` was {loss(f'unmixed {delayed}')} instead of {loss(delayed)}."
    times = {mbit: STEPS.ms("asynchronous", mbit) / STEPS.ms("auto", mbit) for mbit in (10, 100)}
    yield f"take {times[100]:.1f} (100 Mb/s) to {times[10]:.0f} times (10) as long as with `auto`."
    shortest, longest = (STEPS.ms("synchronous", *at) / STEPS.ms("auto", *at) for at in ((100, 5), (10, 0)))
    yield f"{shortest:.1f} to {longest:.1f} times as long as `auto` (100 Mb/s with 5 ms, 10 Mb/s without)"


class Published:
    """The tables of what the literature compares: cells by row, without what is in brackets."""

    def __init__(self) -> None:
        self._rows = dict(reversed([(first, cells) for first, *cells in rows(part("published"))]))
        self._layers = {first: cells for first, *cells in rows(part("published")) if ";" in "".join(cells[:1])}
        """Of the last table, measured, predicted; times as fast as a server."""

    def times(self, name: str, other: str) -> list[float]:
        """By how much an exchange is faster than another: 4 workers without limit, at 10 and 100 Mb/s, and 8."""
        return [int(slow) / int(fast) for fast, slow in zip(self._rows[name], self._rows[other], strict=True)]

    def update_ms(self, name: str) -> list[int]:
        """Of an update, measured, at 10 and 100 Mb/s."""
        return [int(cell.split(",")[0]) for cell in self._layers[name]]

    def simulated(self, name: str) -> int:
        """Milliseconds with 25 million parameters and 64 workers."""
        (cell,) = next(cells for first, cells in self._rows.items() if first.startswith("25 million"))
        found = re.search(rf"`{name}` (\d+) ms", cell)
        assert found is not None, cell
        return int(found[1])


PUBLISHED = Published()


def told_of_published() -> Iterator[str]:
    """In the order of the page."""
    found = PUBLISHED
    few, many = found.times("tree", "server")[1], found.times("tree", "server")[4]
    yield f"the tree takes {few:.1f} times less than the server with 4 workers and {many:.1f} times less with 8"
    layers = found.update_ms("layer_separation")
    servers, one, whole = (
        [other / mine for other, mine in zip(found.update_ms(name), layers, strict=True)]
        for name in ("server, servers: 4", "server", "auto")
    )
    yield (
        f"separated layers are {servers[0]:.1f} times as fast as four servers at 10 Mb/s and {servers[1]:.1f} times at "
        f"100, and {one[0]:.0f} and {one[1]:.1f} times as fast as one. Beside `auto`, which is no server, that is "
        f"{whole[0]:.1f} and {whole[1]:.1f} times."
    )
    apart = found.times("gtopk", "sketch")
    sent = EXCHANGES.sent
    yield f"`gtopk` is {min(apart):.0f} to {max(apart):.0f} times as fast as `sketch`"
    yield f"it sends less ({sent['gtopk']} kB of {sent['sketch']})"
    ratio = {name: found.simulated(name) / found.simulated("sketch") for name in ("gtopk", "sketched_sgd", "auto")}
    yield f"with 64 workers, simulated, `gtopk` is {1 / ratio['gtopk']:.0f} times as fast, too"
    yield (
        f"{found.times('sketch', 'sketched_sgd')[4]:.1f} times as fast with 8 workers at 10 Mb/s, "
        f"{ratio['sketched_sgd']:.1f} times with 64, simulated, where `auto` takes {ratio['auto']:.1f} of it"
    )


OF_MANY_UPDATES = ("local_sgd", "diloco", "streaming_diloco", "streaming_diloco with a delay of 4")
WAYS = (*SUMS, *COMPRESSED, *OF_MANY_UPDATES, "synchronous", "asynchronous")


def far_off(ratio: float) -> float:
    """By which factor measured and predicted differ."""
    return max(ratio, 1 / ratio)


def told_of_predictions() -> Iterator[tuple[str, str]]:
    """Page and words."""
    reached = []
    for name in SUMS:
        off_by = [far_off(ratio) for ratio in MESSAGES.ratios(name)]
        reached.append(f"`{name}` {sum(one <= 1.05 for one in off_by)} ({100 * max(off_by) - 100:.0f} %)")
    targets, architecture = "docs/benchmarks.md", "ARCHITECTURE.md"
    worst = "are within 5 % on so many (in brackets the worst): "
    yield targets, f"{worst}{', '.join(reached)}; on the others they take less than predicted."
    large, few, led, small = (
        f"{min(ratios):.2f} to {max(ratios):.2f}"
        for ratios in (
            MESSAGES.ratios("fp16", "bf16", "threshold", "sketch"),
            MESSAGES.ratios("topk", "gtopk"),
            MESSAGES.ratios("sketched_sgd"),
            MESSAGES.ratios("powersgd", "hierarchical_topk", "onebit"),
        )
    )
    yield (
        targets,
        f"those of `fp16`, `bf16`, `threshold` and `sketch` take {large} times as long as predicted, of `topk` and "
        f"`gtopk` {few}, of `sketched_sgd` {led}. Those of `powersgd`, `hierarchical_topk` and `onebit` take {small} "
        "times",
    )
    every, sums, local = (STEPS.ratios(*names) for names in (WAYS, SUMS, OF_MANY_UPDATES))
    worst_off, apart = (max(map(far_off, sums)), statistics.median(map(far_off, every)))
    yield (
        targets,
        f"[whole steps](#whole-steps-on-slow-links) are {100 * apart - 100:.0f} % apart at the median; "
        f"{sum(far_off(one) <= 1.1 for one in every)} of {len(every)} are within 10 %",
    )
    yield (
        targets,
        f"reached by {sum(far_off(one) <= 1.1 for one in sums)} of {len(sums)} of whole sums (`auto`, `ring`, `tree`, "
        f"`halving_doubling`, `native`, `server`; the others up to {100 * worst_off - 100:.0f} %) and "
        f"{sum(far_off(one) <= 1.1 for one in local)} of {len(local)} of `local_sgd`, `diloco` and `streaming_diloco`",
    )
    yield targets, f"`asynchronous` takes {min(STEPS.ratios('asynchronous')):.2f} of what is predicted at least"
    off = [f"{statistics.median(STEPS.ratios(*COMPRESSED, latencies=(latency,))):.2f}" for latency in (0, 2, 5)]
    near, far = max(STEPS.ratios("sketch", latencies=(0,))), max(STEPS.ratios(*COMPRESSED, latencies=(2, 5)))
    yield (
        targets,
        f"as predicted without latency ({off[0]} at the median; `sketch` up to {near:.2f}), and takes {off[1]} and "
        f"{off[2]} times as long with 2 and 5 ms, and {far:.1f} times at most",
    )
    yield (
        architecture,
        f"steps with compression take {off[1]} and {off[2]} times as long as it says, at the median, on links with 2 "
        f"and 5 ms of latency ({far:.1f} times at most), and without latency {off[0]} times",
    )
    ends = [int(as_whole_after(one).split()[-1]) for one in not_at_parity("char-lm")]
    yield targets, f"as much as whole gradients after {min(ends)} to {max(ends)} of the 256 updates"
    stated = sum(len(not_at_parity(recipe)) for recipe in TASKS)
    again = [
        f"`{name}` in `{recipe}`, was made anew from {told.seeds} seeds, with {told.updates} updates"
        for recipe in TASKS
        for name in not_at_parity(recipe)
        if (told := statement(recipe, _KEPT, name, _SEEDS)).seeds > _SEEDS
    ]
    yield (
        targets,
        f"the same margin of one. {stated - len(again)} of {stated} such statements were; one, {again[0]}, and",
    )
    assert len(again) == 1
    for recipe in TASKS:
        yield targets, f"{len(not_at_parity(recipe))} of {len(OTHERS_LEARNED)} in `{recipe}`"


def test_what_is_said_of_strategies_is_what_was_measured() -> None:
    assert [one for one in told_of_strategies() if one not in STRATEGIES] == []


def test_what_is_said_of_the_literature_is_what_was_measured() -> None:
    page = prose(DOCUMENT)
    assert [one for one in told_of_published() if one not in page] == []
    whole = [min(PUBLISHED.times(one, "tree")[place] for one in ("auto", "ring")) for place in (1, 2, 4, 5)]
    assert min(whole) > 2, "less than half of what the tree does"


def test_what_is_said_of_predictions_is_what_was_measured() -> None:
    assert [(page, one) for page, one in told_of_predictions() if one not in prose(ROOT / page)] == []
    assert max(MESSAGES.ratios(*SUMS)) <= 1.05, "those that do not reach it take less"
    assert len(EXCHANGES.ratios(*SUMS, *COMPRESSED)) == len(LINKS) * len([*SUMS, *COMPRESSED])
    for exchanges in (EXCHANGES, MESSAGES):
        assert statistics.median(map(far_off, exchanges.ratios(*SUMS, *COMPRESSED))) <= 1.05, "the goal"


def test_what_is_said_to_be_slower_is_slower() -> None:
    assert "at 10 to 100 Mb/s, but for `sketch` and `sketched_sgd` from 50 Mb/s on; from which" in STRATEGIES
    slower = {(one, *link) for one in COMPRESSED for link in LINKS if STEPS.ms(one, *link) > STEPS.ms("auto", *link)}
    sketches = {(one, *link) for one in ("sketch", "sketched_sgd") for link in LINKS if link[0] >= 50}
    assert slower == sketches
    assert "at 50 Mb/s `sketch` and `sketched_sgd` compute for longer than they save" in STRATEGIES
    assert min(EXCHANGES.ms(one, 50) for one in ("sketch", "sketched_sgd")) > EXCHANGES.ms("auto", 50)


def test_who_is_said_to_be_at_parity_is() -> None:
    both = (
        "fp16",
        "bf16",
        "synchronous with a backup",
        "powersgd rank 32",
        "topk 50 %",
        "hierarchical_topk 50 %",
        *(one for one in OTHERS_LEARNED if one.startswith("layer_separation")),
    )
    here = (
        "powersgd rank 4",
        "onebit",
        *(one for one in OTHERS_LEARNED if one.endswith("diloco") or "streaming" in one),
    )
    assert not {*both, *here} & {*not_at_parity(IMAGES)}
    assert not {*both} & {*not_at_parity("char-lm")}
    assert all(one in not_at_parity(recipe) for one in OTHERS_LEARNED if one.endswith("topk 5 %") for recipe in TASKS)


def test_each_strategy_holds_the_parity_that_is_stated_of_it() -> None:
    for recipe in TASKS:
        held = {first: cells[-1] for first, *cells in rows(LEARNED[recipe])}
        assert [name for name, said in held.items() if said == "yes"] == not_at_parity(recipe)
        assert [name for name, said in held.items() if said == "no"] == []
        assert all(statement(recipe, _KEPT, name, _SEEDS).is_held for name in OTHERS_LEARNED)


def test_the_table_of_what_is_learned_is_that_of_its_record() -> None:
    assert [recipe for recipe, told in LEARNED.items() if told not in part("parity")] == []


def test_in_the_ranking_and_with_two_digits_no_other_figure_stands() -> None:
    """Each has a table, which `told_of_strategies` names: a new one belongs there, a setting into SETTINGS."""
    rest = STRATEGIES
    for one in told_of_strategies():
        rest = rest.replace(one, "")
    rest = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", rest)
    ranking = rest.split("## Which one")[1].split("## The methods")[0]
    assert set(re.findall(r"\d[\d.,]*(?: %)?(?<![.,])", ranking)) <= SETTINGS
    assert re.findall(r"(?<![\d.])\d\.\d\d(?![\d.])", rest) == []
