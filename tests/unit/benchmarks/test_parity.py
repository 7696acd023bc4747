"""Strategies are compared on the same updates of the same samples; nothing is trained here."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.parity import (
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
    table,
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
    assert again.curve("char-lm", 2) == {look: 2.5 + UPDATES - look for look in LOOKS}
    again.add("char-lm", "fp16", {32: 3.5})
    assert again.of("char-lm", "fp16") == [3.5]
    assert list(again.missing(["char-lm"], ["auto", "fp16"], 2)) == [
        ("char-lm", "auto", 1),
        ("char-lm", "fp16", 1),
    ]
    file.write_text(file.read_text().replace(f'"updates": {UPDATES}', '"updates": 1'))
    with pytest.raises(ValueError, match="name another file"):
        Values(file)


def test_who_is_worse_by_a_deviation_is_not_at_parity_but_as_far_as_whole_gradients_were_before() -> None:
    curve = {16: 4.1, 32: 2.5, 48: 2.1}
    told = table("char-lm", {"auto": [2.0, 2.2], "near": [2.1, 2.2], "far": [2.3, 2.5]}, curve)
    ends = [line.split(" | ")[-2:] for line in told.splitlines()[4:]]
    assert ends == [["48 updates", "yes |"], ["46 updates", "yes |"], ["36 updates", "no |"]]
    told = table("image-classifier", {"auto": [0.9, 0.92], "far": [0.8, 0.82]}, {16: 0.71, 32: 0.91})
    assert [line.split(" | ")[-2:] for line in told.splitlines()[4:]] == [
        ["32 updates", "yes |"],
        ["24 updates", "no |"],
    ]


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
    assert TASKS["image-classifier"].updates_to(value, curve) == pytest.approx(updates)
    falling = {16: 0.5, 32: 0.4, 48: 0.9}
    assert TASKS["image-classifier"].updates_to(0.3, falling) == 16
    assert TASKS["image-classifier"].updates_to(0.7, falling) == pytest.approx(32 + 16 * 0.3 / 0.5)
