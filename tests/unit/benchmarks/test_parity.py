"""Strategies are compared on the same updates of the same samples; nothing is trained here."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.parity import (
    ATTEMPTS,
    EVERY,
    LOCAL,
    LOOKS,
    STRATEGIES,
    TASKS,
    UPDATE,
    UPDATES,
    WORKERS,
    Values,
    parser,
    spec_of,
    statement,
    table,
    wanted,
)
from benchmarks.programs.parity import ROUND
from rubato.data.order import BatchPlan, RoundPlan
from rubato.recipes import char_lm, image_classifier
from rubato.wire.spec import parse_spec


def samples_of(recipe: str) -> int:
    """Of the recipe's data, what rounds divide."""
    if recipe == "image-classifier":
        count = len(image_classifier.Digits(train=True))
    else:
        config = char_lm.Config(**TASKS[recipe].config)
        text = char_lm.read_text(config.max_characters)
        count = len(char_lm.Windows(text[: len(text) * 19 // 20], config.context))
    return count // ROUND * ROUND


@pytest.mark.parametrize("recipe", sorted(TASKS))
def test_each_strategy_makes_as_many_updates_of_as_many_samples_in_the_same_order(recipe: str) -> None:
    count = samples_of(recipe)
    assert count >= ROUND
    expected = None
    for name in [*STRATEGIES, *LOCAL]:
        fields = spec_of(name, TASKS[recipe])
        spec = parse_spec({"name": "job", "entrypoint": "x.py:train", **fields})
        assert isinstance(spec.batch.num_microbatches, int)
        updates = spec.local_updates.sync_every if name in LOCAL else 1
        cut = count, spec.batch.global_size, spec.batch.num_microbatches, 0
        plan = BatchPlan(*cut) if updates == 1 else RoundPlan(*cut, updates)
        leaves = range(spec.batch.num_microbatches)
        seen = [plan.part_size(step, part) for step in range(spec.config["steps"]) for part in plan.parts(step, leaves)]
        assert seen == [UPDATE] * UPDATES, name
        first = sorted(
            sample for step in range(ROUND // spec.batch.global_size) for sample in plan.samples(step, 0, WORKERS)
        )
        assert first == (expected := expected or first), name
        assert spec.config["steps"] <= spec.config.get("epochs", 100) * plan.steps_per_epoch
        assert spec.config["evaluate_every"] == spec.config["steps"]
        assert UPDATE % WORKERS == 0


def test_of_one_seed_there_is_no_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--seeds", "1"])
    assert "at least 2" in capsys.readouterr().err


def test_what_was_kept_is_not_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    values = Values(file)
    values.add("char-lm", "auto", {look: 2.5 + UPDATES - look for look in LOOKS})
    again = Values(file)
    assert again.of("char-lm", "auto") == [2.5]
    assert again.curve("char-lm") == {look: [2.5 + UPDATES - look] for look in LOOKS}
    again.add("char-lm", "fp16", {32: 3.5})
    assert again.of("char-lm", "fp16") == [3.5]
    assert list(again.missing({"char-lm": {"auto": 2, "fp16": 2}, "image-classifier": {"auto": 2}})) == [
        ("char-lm", "auto", 1),
        ("char-lm", "fp16", 1),
        ("image-classifier", "auto", 0),
        ("image-classifier", "auto", 1),
    ]
    file.write_text(file.read_text().replace(f'"updates": {UPDATES}', '"updates": 1'))
    with pytest.raises(ValueError, match="name another file"):
        Values(file)


IMAGES, TEXT = TASKS["image-classifier"], TASKS["char-lm"]
WHOLE_ON_THE_WAY = {16: [4.0, 4.2], 32: [2.4, 2.6], 48: [2.0, 2.2], UPDATES: [1.9, 2.1]}
"""A loss."""


@pytest.mark.parametrize(
    ("values", "updates"),
    [
        ([1.9, 2.1], UPDATES),
        ([2.0, 2.15], UPDATES),
        ([1.0, 1.1], UPDATES),
        ([2.1, 2.3], 32),
        ([2.05, 2.55], 32),
        ([2.4, 2.6], 16),
        ([3.9, 4.15], 0),
        ([5.0, 5.1], 0),
    ],
)
def test_parity_is_stated_with_the_last_look_that_is_behind_by_half_a_deviation(
    values: list[float], updates: int
) -> None:
    assert TEXT.stated(values, WHOLE_ON_THE_WAY) == updates
    falling = {look: [-one for one in those] for look, those in WHOLE_ON_THE_WAY.items()}
    assert IMAGES.stated([-one for one in values], falling) == updates


def test_beyond_a_look_that_was_not_behind_nothing_is_stated() -> None:
    curve = {16: [4.0, 4.2], 32: [2.0, 2.2], 48: [2.4, 2.6], UPDATES: [1.0, 1.2]}
    assert TEXT.stated([2.1, 2.3], curve) == 16


BEHIND = 0.1 * 3 * EVERY
"""What whole gradients learn in three looks."""
ENDS = [2.0, 2.2, 3.0, 3.2, 2.4, 2.6, 2.5, 2.7]
"""Of whole gradients, by seeds."""


def kept(values: dict[str, list[float]], seeds: int = len(ENDS)) -> Values:
    """Of `char-lm`, where whole gradients learn evenly."""
    found = Values(None)
    for end in ENDS[:seeds]:
        found.add("char-lm", "auto", {look: end + 0.1 * (UPDATES - look) for look in LOOKS})
    for name, those in values.items():
        for value in those:
            found.add("char-lm", name, {32: value})
    return found


def test_what_is_stated_of_who_is_worse_by_a_deviation_is_held_by_other_seeds() -> None:
    values = kept({"near": [2.1, 2.2], "far": [one + BEHIND for one in ENDS[:4]], "lost": [90.0, 90.1, 3.0, 3.1]})
    told = table("char-lm", values, ["auto", "near", "far", "lost"], 2)
    ends = [line.removesuffix(" |").split(" | ")[-4:] for line in told.splitlines()[4:]]
    all_of_them = f"{UPDATES} updates"
    assert ends == [
        [all_of_them, all_of_them, "", ""],
        [all_of_them, all_of_them, "", ""],
        [f"{UPDATES - 3 * EVERY} updates", f"{UPDATES - 4 * EVERY} updates", "-11.3", "yes"],
        [f"{EVERY} updates", "0 updates", "+inf", "no"],
    ]


def test_a_statement_that_other_seeds_refute_is_made_anew_from_all_of_them() -> None:
    unlucky = [ENDS[0] + BEHIND, ENDS[1] + BEHIND, *(one + 2 * BEHIND for one in ENDS[2:])]
    refuted = statement("char-lm", kept({"unlucky": unlucky[:4]}), "unlucky", 2)
    assert refuted.seeds == 4
    assert refuted.updates < UPDATES - 4 * EVERY
    assert not refuted.is_held, "nobody has asked others yet"
    held = statement("char-lm", kept({"unlucky": unlucky[:6]}), "unlucky", 2)
    assert (held.updates, held.seeds, held.is_held) == (refuted.updates, 4, True)
    never = [one + (1 + place // 2) * BEHIND for place, one in enumerate(ENDS)]
    last = statement("char-lm", kept({"never": never}), "never", 2)
    assert (last.seeds, last.is_held) == (2 * ATTEMPTS, False)


def test_as_many_seeds_are_measured_as_statements_need() -> None:
    others = {"near": [2.1, 2.2], "far": [one + BEHIND for one in ENDS[:2]]}
    values, names = kept(others, seeds=2), ["auto", "near", "far"]
    assert wanted("char-lm", values, names, 2) == {"auto": 4, "near": 2, "far": 4}
    assert wanted("char-lm", values, names[:2], 2) == {"auto": 2, "near": 2}
    unlucky = {"far": [ENDS[0] + BEHIND, ENDS[1] + BEHIND, *(one + 2 * BEHIND for one in ENDS[2:4])]}
    assert wanted("char-lm", kept(unlucky, seeds=4), ["auto", "far"], 2) == {"auto": 6, "far": 6}
    assert wanted("char-lm", kept({"lost": [90.0, 90.1]}, seeds=2), ["auto", "lost"], 2) == {"auto": 2, "lost": 2}


@given(
    st.sampled_from(sorted(TASKS)),
    st.lists(st.floats(0.01, 1.0), min_size=len(LOOKS), max_size=len(LOOKS)),
    st.floats(EVERY, UPDATES),
)
def test_what_lies_on_the_curve_is_found_where_it_lies(recipe: str, steps: list[float], updates: float) -> None:
    task = TASKS[recipe]
    sign = 1.0 if task.is_better_high else -1.0
    curve = dict(zip(LOOKS, (sign * one for one in accumulate(steps)), strict=True))
    early = min(int(updates // EVERY) * EVERY, UPDATES - EVERY)
    share = (updates - early) / EVERY
    value = (1 - share) * curve[early] + share * curve[early + EVERY]
    assert task.updates_to(value, curve) == pytest.approx(updates, rel=1e-6)
    assert task.updates_to(curve[UPDATES] + sign, curve) == UPDATES, "better than all of it"
    assert task.updates_to(curve[EVERY] - sign, curve) == EVERY, "worse than all of it"


@pytest.mark.parametrize(("value", "updates"), [(0.3, 16), (0.5, 16), (0.65, 40), (0.7, 48), (0.95, 80)])
def test_of_a_curve_that_falls_the_first_place_counts(value: float, updates: float) -> None:
    curve = {16: 0.5, 32: 0.6, 48: 0.7, 64: 0.4, 80: 0.9}
    assert IMAGES.updates_to(value, curve) == pytest.approx(updates)
    falling = {16: 0.5, 32: 0.4, 48: 0.9}
    assert IMAGES.updates_to(0.3, falling) == 16
    assert IMAGES.updates_to(0.7, falling) == pytest.approx(32 + 16 * 0.3 / 0.5)
