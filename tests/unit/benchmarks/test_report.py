from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from typing import Any

import pytest

from benchmarks.figures import FIGURES, Measured, cell
from benchmarks.plot import Bar, bars_svg, place
from benchmarks.report import Context, in_short, merge, plot, report

CONTEXT = Context("2026-01-02", "a machine", "torch 9", rounds=3, width=64, batch=256)
ALL = [figure.key for figure in FIGURES]
BY_KEY = {figure.key: figure for figure in FIGURES}


def cells(text: str, label: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {label}"))
    return [one.strip() for one in line.strip("|").split("|")[1:]]


def test_a_cell_tells_median_and_range_in_the_unit_of_its_figure() -> None:
    assert cell(BY_KEY["kill"], {"kill": [0.301, 0.2, 12.34]}) == "0.30 (0.20 to 12.3)"
    assert cell(BY_KEY["steady_2"], {"steady_2": [0.1504]}) == "150"
    assert cell(BY_KEY["redone"], {"redone": [6.0, 0.375, 6.0]}) == "6 (0.38 to 6)"
    assert cell(BY_KEY["kill"], {}) is None


@pytest.mark.parametrize(("values", "told"), [([1.0, 1.0], "yes"), ([1.0, 0.0], "no"), ([0.0], "no")])
def test_weights_are_equal_only_if_they_are_in_every_round(values: list[float], told: str) -> None:
    assert cell(BY_KEY["equal"], {"equal": values}) == told


def test_what_is_missing_says_why() -> None:
    measured = {
        "rubato": Measured({"up_1_2": [0.1]}),
        "ddp": Measured({"steady_2": [0.2]}),
        "torchft": Measured(failures={"story": "it ended\nlong\nOSError: no"}),
    }
    text = report(measured, CONTEXT, ALL)
    assert cells(text, "downtime, 1 -> 2") == ["0.10", "-", "failed", "< 0.1"]
    assert cells(text, "downtime, SIGKILL") == ["never", "-", "failed", "< 0.4"]
    assert "torchft failed in the run `story`: it ended ... OSError: no" in text


def test_steady_steps_are_set_against_ddp() -> None:
    measured = {
        "rubato": Measured({"steady_4": [0.3]}),
        "ddp": Measured({"steady_4": [0.2]}),
        "ddp-passes": Measured({"steady_4": [0.25]}),
        "torchrun": Measured({"steady_4": [0.21]}),
    }
    text = report(measured, CONTEXT, ALL)
    assert cells(text, "of DDP's step with one pass, 4") == ["1.50", "1.00", "1.25", "1.05", ""]
    assert cells(text, "of DDP's step with the same passes, 4") == ["1.20", "", "", "", "at most 1.05"]


def test_all_rows_have_as_many_cells_and_only_those_asked_for_are_there() -> None:
    measured = {"rubato": Measured(), "torchrun": Measured()}
    lines = [line for line in report(measured, CONTEXT, ["kill", "start"]).splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert {line.count("|") for line in lines} == {5}


def kept(kills: list[float], rounds: int, **terms: Any) -> dict[str, Any]:
    context = asdict(replace(CONTEXT, rounds=rounds, **terms))
    return {"context": context, "peers": {"rubato": asdict(Measured({"kill": kills}))}}


def test_measurements_on_the_same_terms_are_told_as_one() -> None:
    first = kept([0.1], 1, machine="a machine, load 10.1")
    measured, context = merge([first, kept([0.2, 0.3], 2, machine="a machine, load 2.0", date="2026-01-03")])
    assert measured["rubato"].samples == {"kill": [0.1, 0.2, 0.3]}
    assert (context.rounds, context.date) == (3, "2026-01-02 to 2026-01-03")
    assert context.machine == "a machine, load 2.0 to 10.1"
    assert (
        merge([first, kept([0.1], 1, machine="other, load 1.0")])[1].machine == "a machine, load 10.1; other, load 1.0"
    )
    with pytest.raises(SystemExit, match="do not compare"):
        merge([first, kept([0.2], 1, width=9)])
    with pytest.raises(SystemExit, match="do not compare"):
        merge([first, kept([0.2], 1, device_s=0.02)])
    assert "waits 20 ms for a device; medians" in report(measured, replace(context, device_s=0.02), ["kill"])
    assert "device" not in report(measured, context, ["kill"])


def test_the_plot_is_svg_with_a_bar_for_each_value_and_words_for_none() -> None:
    measured = {"rubato": Measured({"kill": [0.1, 0.3]}), "torchrun": Measured({"up_1_2": [7.0]})}
    root = ET.fromstring(plot(measured))
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert "0.20" in words
    assert "7.0" in words
    assert words.count("torchrun: none measured") == 3


def test_the_axis_is_logarithmic_and_ends_where_it_ends() -> None:
    assert place(0.1) - place(0.01) == pytest.approx(place(10.0) - place(1.0))
    assert place(0.0) == place(0.01)
    assert place(1000.0) == place(100.0)
    assert "&lt;b&gt;" in bars_svg("<b>", [("group", [Bar("one", [1.0])])])


def test_a_failure_is_told_by_its_first_line_and_the_last_error_in_it() -> None:
    output = "it ended:\n  File x\nKeyError: 1\nModuleNotFoundError: no y\n2026 [INFO] a log line"
    assert in_short(output) == "it ended: ... ModuleNotFoundError: no y"
    assert in_short("no recovery within 180 s") == "no recovery within 180 s"
