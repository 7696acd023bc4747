"""Which links are measured, for how long, and how it is told; nothing is measured here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks import strategy_steps
from benchmarks.kept import Kept
from benchmarks.strategies import PROFILE, Emulated
from benchmarks.strategy_steps import (
    LEAST,
    LEAST_LOCAL,
    LONG_S,
    STEPS,
    WAYS,
    batch_of,
    fields_of,
    label,
    link_kept,
    links_of,
    parser,
    predicted_s,
    profile_kept,
    steps_of,
    tables,
)
from benchmarks.strategy_steps import spec as spec_fields
from rubato.planner.measured import link_of
from rubato.planner.methods import Strategy
from rubato.planner.options import name_of
from rubato.planner.profile import Profile
from rubato.wire.aggregation import Algorithm, Method
from rubato.wire.codec import from_json
from rubato.wire.local_updates import LocalMethod
from rubato.wire.spec import parse_spec

WORKERS = 4
MEASURED = Path(strategy_steps.__file__).parent / "measured" / "strategy-steps.json"
FOUR = {"initial": WORKERS, "min": WORKERS, "max": WORKERS}
FOUND = {"link_latency_s": 0.1, "link_bytes_per_s": 1e6, "link_workers": WORKERS, "link_large_bytes": 1e6}
"""Of a slower link than it is limited to be."""


def test_all_nine_links_are_measured_unless_others_are_named() -> None:
    grid = product((10, 50, 100), (0, 2, 5))
    assert sorted((one.mbit, one.latency_ms) for one in links_of(parser().parse_args([]))) == sorted(grid)
    few = parser().parse_args(["--mbit", "50", "--latency-ms", "0,5"])
    assert links_of(few) == [Emulated(50, 0), Emulated(50, 5)]


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, STEPS), (1.0, 20), (60.0, LEAST)])
def test_of_long_steps_there_are_fewer(step_s: float, steps: int) -> None:
    assert steps_of(Strategy(), step_s) == steps
    assert steps * step_s <= max(LONG_S, LEAST * step_s)
    of_many_updates = steps_of(Strategy(local="diloco", sync_every=8), step_s)
    assert of_many_updates == (LEAST_LOCAL if step_s == 60.0 else steps)


def test_all_of_a_table_is_predicted_from_one_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Though it be measured in two runs."""
    file, profiles = tmp_path / "kept.json", [PROFILE]
    monkeypatch.setattr(strategy_steps, "profile_of_program", profiles.pop)
    assert profile_kept(Kept[Any](file, {})) == PROFILE
    assert profile_kept(Kept[Any](file, {})) == PROFILE
    assert not profiles, "it was measured once"


def test_all_that_a_spec_may_name_is_measured() -> None:
    """But `layer_separation`, which is worth it with other layers: `benchmarks.published` has some."""
    methods = {*get_args(Algorithm), *get_args(Method), *get_args(LocalMethod)} - {"none"}
    assert {name_of(one) for one in WAYS} == methods - {"layer_separation"}
    for one in WAYS:
        spec = parse_spec({**spec_fields(workers=FOUR), "batch": batch_of(one), **fields_of(one)})
        assert (spec.local_updates.method, spec.local_updates.sync_every) == (one.local, one.sync_every)
        assert one.local != "none" or spec.aggregation.name == name_of(one)
        assert (spec.local_updates.fragments, spec.local_updates.delay) == (one.fragments, one.delay)


def train_at_once(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], int]]:
    """Fields and steps of the jobs, each of which takes a second a step."""
    trained: list[tuple[dict[str, Any], int]] = []

    def train(net: object, workers: int, fields: dict[str, Any], steps: int, machines: Sequence[int]) -> float:
        assert machines == ((1, 1, 2, 2) if "hierarchical_topk" in str(fields) else (1, 2, 3, 4))
        trained.append((fields, steps))
        return 1.0

    monkeypatch.setattr(strategy_steps, "train", train)
    monkeypatch.setattr(strategy_steps, "emulate", lambda workers, link: nullcontext("a network"))
    monkeypatch.setattr(strategy_steps, "probe", lambda net, workers: [FOUND])
    return trained


def test_of_a_link_that_was_measured_only_the_ways_that_are_new_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is of a release with fewer ways, in the same terms."""
    trained = train_at_once(monkeypatch)
    file, link, new = tmp_path / "kept.json", Emulated(10, 0), {"threshold", "diloco", "synchronous"}
    older = Kept[Any](file, {"workers": WORKERS})
    for name in {label(one) for one in WAYS} - new:
        older.put("10 Mb/s, 0 ms", name, 2.5)
    told = tables(PROFILE, WORKERS, [link], Kept(file, {"workers": WORKERS}))
    assert [fields for fields, _ in trained] == [
        {"batch": batch_of(one), **fields_of(one)} for one in WAYS if label(one) in new
    ]
    assert told.count("2500, ") == len(WAYS) - len(new)
    now = Kept[Any](file, {"workers": WORKERS})
    found = {label(one): now.get("10 Mb/s, 0 ms", label(one)) for one in WAYS}
    assert {name for name, seconds in found.items() if seconds == 2.5} == found.keys() - new
    assert {name: found[name] for name in new} == {"threshold": 1.0, "diloco": 1 / 8, "synchronous": 1 / 4}


def test_steps_are_predicted_from_what_one_probe_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    train_at_once(monkeypatch)
    file, link, probed = tmp_path / "kept.json", Emulated(50, 2), [[FOUND]]
    monkeypatch.setattr(strategy_steps, "probe", lambda net, workers: probed.pop())
    assert link_kept(WORKERS, link, Kept(file, {}), measures=False) == link.as_planned, "as nothing was probed"
    found = link_kept(WORKERS, link, Kept(file, {}), measures=True)
    assert (found.latency_s, found.bytes_per_s) == (0.1, 1e6)
    assert link_kept(WORKERS, link, Kept(file, {}), measures=True) == found, "it was kept"
    told = tables(PROFILE, WORKERS, [link], Kept(file, {}), WAYS[:1])
    assert f"| `auto` | 1000, {1e3 * predicted_s(PROFILE, WORKERS, found, Strategy()):.0f} |" in told


@pytest.mark.parametrize(
    "name", ["auto", "ring", "tree", "halving_doubling", "native", "server", "local_sgd", "diloco"]
)
def test_what_was_measured_of_whole_sums_is_predicted(name: str) -> None:
    """docs/benchmarks.md: on all nine links, with latency too."""
    kept = json.loads(MEASURED.read_text())["values"]
    profile = from_json(Profile, kept["one worker"]["profile"], strict=True)
    (way,) = (one for one in WAYS if label(one) == name)
    found = [kept[f"{one.mbit:g} Mb/s, {one.latency_ms:g} ms"] for one in links_of(parser().parse_args([]))]
    ratios = [one[name] / predicted_s(profile, WORKERS, link_of(one["links"]), way) for one in found]
    assert len(ratios) == 9
    assert sum(max(ratio, 1 / ratio) < 1.1 for ratio in ratios) >= 6
    assert all(1 / 1.16 < ratio < 1.16 for ratio in ratios)


def test_some_ways_alone_may_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = train_at_once(monkeypatch)
    only = parser().parse_args(["--only", "diloco,ring"]).only
    told = tables(PROFILE, WORKERS, [Emulated(50, 2)], Kept(None, {}), [one for one in WAYS if label(one) in only])
    assert len(trained) == 2
    assert told.count("| `ring` | 1000, ") == told.count("| `diloco` | 125, ") == 1


def test_what_was_not_measured_yet_may_be_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, kept = train_at_once(monkeypatch), Kept[Any](None, {})
    kept.put("50 Mb/s, 2 ms", "ring", 2.5)
    told = tables(PROFILE, WORKERS, [Emulated(50, 2)], kept, measures=False)
    assert trained == []
    assert told.count("| `ring` | 2500, ") == 1
    assert told.count("| not measured, ") == len(WAYS) - 1


def test_each_latency_has_a_table_and_the_ratio_is_over_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever trains here takes one second a step, whatever the link; one is measured already."""
    trained = train_at_once(monkeypatch)
    links = [Emulated(mbit, latency) for latency in (0, 5) for mbit in (10, 100)]
    kept = Kept[Any](tmp_path / "kept.json", {})
    kept.put("10 Mb/s, 0 ms", "auto", 2.5)
    told = tables(PROFILE, 4, links, kept)
    assert told.count("| strategy | 10 Mb/s: measured, predicted | 100 Mb/s: measured, predicted |") == 2
    names = [label(one) for one in WAYS]
    assert all(told.count(f"| `{name}` | ") == 2 for name in names)
    assert "Latency 5 ms one way:" in told
    assert "| `auto` | 2500, " in told
    assert len(trained) == 4 * len(names) - 1
    assert min(steps for _, steps in trained) < STEPS
    assert told.endswith(" at most.")
    again = tables(PROFILE, 4, links, Kept(tmp_path / "kept.json", {}))
    assert (again, len(trained)) == (told, 4 * len(names) - 1)
