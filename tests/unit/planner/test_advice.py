"""Which strategy is recommended where another than the spec's is faster, what is said of it, and of other profiles."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.planner.advice import OF_NO_PASS, WORTH_IT
from rubato.planner.choose import Plan, plan
from rubato.planner.links import Link, Moved
from tests.unit.planner.two_layers import FAST, MODEL, planned, spec_of

TREE: dict[str, Any] = {"algorithm": "tree"}


def asked(link: Link, aggregation: dict[str, Any], codec_s: float = 1e-9, **fields: Any) -> Plan:
    profile = replace(MODEL, codec_s=dict.fromkeys(MODEL.codec_s, codec_s))
    return planned(link, profile, reproducible=False, aggregation=aggregation, **fields)


def of_another(answer: Plan) -> list[str]:
    return [one for one in answer.sentences if one.startswith("The spec has")]


@pytest.mark.parametrize(
    ("aggregation", "sentence"),
    [
        (TREE, "The spec has tree, and one worker would be recommended for it: {} Say aggregation.algorithm: auto."),
        (
            {"algorithm": "server"},
            "The spec has server, and one worker would be recommended for it: {} Say aggregation.algorithm: auto.",
        ),
    ],
)
def test_a_much_faster_strategy_that_learns_the_same_is_recommended(aggregation: dict[str, Any], sentence: str) -> None:
    answer = asked(Link(1e-4, 2e8), aggregation)
    usual = asked(Link(1e-4, 2e8), {})
    assert answer.recommended == usual.recommended
    assert (answer.recommended.name, answer.recommended.workers) == ("auto", 2)
    assert answer.by_workers == usual.by_workers
    (alone,) = [one for one in answer.options if (one.name, one.workers) == (aggregation["algorithm"], 1)]
    times = f"{alone.step_s / answer.recommended.step_s:.2g}"
    told = f"auto with 2 workers is {times} times as fast, and learns the same but for rounding."
    assert of_another(answer) == [sentence.format(told)]
    assert not of_another(usual)


def test_of_more_workers_it_is_told_whether_they_are_slower_or_bring_little() -> None:
    links = Link(1e-3, 1e6), Link(1e-4, 2e8)
    told = [next(one for one in asked(link, {}).sentences if one.startswith("With ")) for link in links]
    assert re.fullmatch(r"With 2 it would be 0\.\d+ times one: it would be slower\.", told[0])
    assert told[1].endswith(" times one: a worker more would bring less than half of what the first ones bring.")


def test_how_a_spec_says_it_goes_by_what_it_has() -> None:
    (servers,) = of_another(asked(Link(1e-6, 1e9), {"algorithm": "server", "servers": 2}))
    assert servers.endswith("Say aggregation.algorithm: auto, and leave aggregation.servers out.")
    (rounded,) = of_another(asked(FAST, {"compression": {"method": "fp16"}}, codec_s=4e-8))
    assert rounded.endswith("Say aggregation.algorithm: auto, and leave aggregation.compression out.")


def test_servers_are_recommended_with_their_number() -> None:
    """Where measured exchanges of all other kinds take long: a ring for its bytes, as it carries labels, too."""
    start_s = dict.fromkeys(("direct", "tree", "halving_doubling", "native"), 1.0)
    moved = {"ring": (Moved(1e3, 1.0),), "server": (Moved(1e9, 1e-3),)}
    link = Link(1e-6, 1e12, start_s=start_s, moved=moved, measured_workers=4)
    answer = asked(link, TREE)
    assert answer.recommended.name == "server"
    assert of_another(answer)[0].endswith("Say aggregation.algorithm: server and aggregation.servers: 1.")


def test_the_specs_own_stays_where_another_is_hardly_faster() -> None:
    near = asked(Link(1e-6, 1e10), TREE)
    (auto,) = [one for one in near.options if (one.name, one.workers) == ("auto", near.recommended.workers)]
    assert 1 < near.recommended.step_s / auto.step_s < WORTH_IT
    assert {near.recommended.name, *(one.name for one in near.by_workers)} == {"tree"}
    assert not of_another(near)


def test_equal_bits_have_no_other_strategy() -> None:
    answer = planned(Link(1e-4, 2e8))
    assert {one.name for one in answer.options} == {"auto"}
    assert not of_another(answer)


def test_what_leaves_out_a_part_is_planned_for_also_where_whole_gradients_are_faster() -> None:
    answer = asked(FAST, {"compression": {"method": "topk"}}, codec_s=4e-8)
    assert {answer.recommended.name, *(one.name for one in answer.by_workers)} == {"topk"}
    (told,) = [one for one in answer.sentences if "costs more than it saves" in one]
    least = min((one for one in answer.options if one.name == "topk"), key=lambda one: one.step_s)
    whole = min((one for one in answer.options if one.is_whole), key=lambda one: one.step_s)
    assert told == (
        f"{whole.name} with {whole.workers} workers would be {least.step_s / whole.step_s:.2g} times as fast, with "
        f"whole gradients, as topk with {least.workers} workers: topk costs more than it saves here."
    )
    assert not of_another(answer)
    saving = asked(Link(1e-4, 2e7), {"compression": {"method": "topk"}})
    assert not any("costs more than it saves" in one for one in saving.sentences)


def test_more_workers_are_no_reason_against_a_strategy() -> None:
    """Fewer pay with `topk`, and it is faster than whole gradients with as many all the same."""
    profile = replace(MODEL, codec_s=dict.fromkeys(MODEL.codec_s, 3e-9), spread=0.4)
    spec = {"aggregation": {"compression": {"method": "topk", "density": 0.01}}, "batch": {"global_size": 1024}}
    answer = planned(Link(1e-4, 4e7), profile, reproducible=False, **spec)
    least = {one.name: one.step_s for one in answer.best}
    assert least["topk"] < least["auto"] < answer.recommended.step_s / WORTH_IT
    assert not any("costs more than it saves" in one for one in answer.sentences)


def test_passes_that_varied_are_told() -> None:
    even, uneven = (planned(FAST, replace(MODEL, spread=spread)) for spread in (0.2, 0.35))
    assert not any("varied" in one for one in even.sentences)
    assert [one for one in uneven.sentences if one.startswith("Passes varied by 35% when they were profiled")]


LEAVING = ("powersgd", "topk", "gtopk", "onebit", "sketch", "sketched_sgd")


def changing(answer: Plan) -> list[str]:
    """The strategies that are told though they change what is learned, with the price of each."""
    pattern = r"(\w+) with \d+ workers would be [\d.]+ times as fast, but (rounds|leaves out) .*: compare loss curves"
    return [f"{found[1]} {found[2]}" for one in answer.sentences if (found := re.match(pattern, one))]


@pytest.mark.parametrize(
    ("bytes_per_s", "codec_s", "told"),
    [
        (2e8, {}, ["fp16 rounds", "topk leaves out"]),
        (2e8, {"topk": 1e-7, "gtopk": 1e-7}, ["fp16 rounds", "powersgd leaves out"]),
        (2e8, dict.fromkeys(LEAVING, 1e-7), ["fp16 rounds"]),
        (2e8, dict.fromkeys(LEAVING, 1.5e-8), ["fp16 rounds"]),
        (2e7, {}, ["topk leaves out"]),
        (1e12, {}, []),
    ],
)
def test_what_only_rounds_is_told_before_what_leaves_out(
    bytes_per_s: float, codec_s: dict[str, float], told: list[str]
) -> None:
    profile = replace(MODEL, codec_s={**MODEL.codec_s, **codec_s})
    answer = planned(Link(1e-4, bytes_per_s), profile, reproducible=False)
    assert changing(answer) == told


def test_more_workers_are_no_other_strategy() -> None:
    """Two pay with fp16; bf16 with eight is as fast as fp16 with eight."""
    answer = asked(Link(1e-4, 2e8), {"compression": {"method": "fp16"}})
    assert answer.recommended.workers == 2
    assert changing(answer) == ["topk leaves out"]


def test_a_profile_of_another_program_is_told() -> None:
    def told(program: str) -> list[str]:
        return [one for one in planned(FAST, replace(MODEL, program=program)).sentences if "The profile is of" in one]

    assert told("other.py:train") == [
        "The profile is of other.py:train, and this is train.py:train: `rubato profile` measures that."
    ]
    assert told("train.py:train") == told("") == []


@pytest.mark.parametrize(
    ("measured", "config", "was", "has"),
    [
        ({"width": 256}, {"width": 1024}, "config.width 256", "config.width 1024"),
        ({"width": 256, "lr": 0.1}, {"lr": 0.2}, "config.width 256", "no config.width"),
        ({}, {"size": "large", "steps": 9}, "no config.size", 'config.size "large"'),
        (
            {"model": {"width": 64, "layers": 2}, "tied": True},
            {"model": {"width": 64, "layers": 4}, "tied": False},
            "config.model.layers 2, config.tied true",
            "config.model.layers 4, config.tied false",
        ),
        ({"sizes": [64] * 99}, {}, "config.sizes [64, 64, 64, 64, 64, 64, 64, 64, 64, ...", "no config.sizes"),
        (
            dict.fromkeys("abcde", 1),
            dict.fromkeys("abcde", 2),
            "config.a 1, config.b 1, config.c 1",
            "config.a 2, config.b 2, config.c 2 (2 more differ)",
        ),
    ],
)
def test_a_profile_with_another_config_is_told(
    measured: dict[str, Any], config: dict[str, Any], was: str, has: str
) -> None:
    told = planned(FAST, replace(MODEL, config=measured), config=config).sentences
    assert told[0] == (
        f"The profile was measured with {was}, and this spec has {has}: `rubato profile` measures it anew."
    )
    assert told[1:] == planned(FAST).sentences


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.text(), inner)
)


@given(
    config=st.dictionaries(st.text(), VALUES, max_size=4),
    then=st.dictionaries(st.sampled_from(sorted(OF_NO_PASS)), st.integers()),
    now=st.dictionaries(st.sampled_from(sorted(OF_NO_PASS)), st.integers()),
)
def test_a_config_that_leaves_passes_as_they_are_is_not_told(
    config: dict[str, Any], then: dict[str, int], now: dict[str, int]
) -> None:
    usual, spec = planned(FAST).sentences, spec_of(config={**config, **now})
    assert plan(replace(MODEL, config={**config, **then}), FAST, spec).sentences == usual
    assert plan(MODEL, FAST, spec).sentences == usual, "a profile that does not tell its config"


def test_files_that_have_changed_are_told() -> None:
    def told(*changed: str, program: str = "train.py:train") -> str:
        return plan(replace(MODEL, program=program), FAST, spec_of(), changed=changed).sentences[0]

    assert told("train.py").startswith("The program has changed since it was profiled (train.py): `rubato profile`")
    assert "(a.py, b.py, c.py and 2 more)" in told(*(f"{name}.py" for name in "abcde"))
    assert told("train.py", program="other.py:train").startswith("The profile is of other.py:train")
