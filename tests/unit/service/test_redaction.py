"""Secrets are taken out of every text of a report, in the forms that programs print them in."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rubato.launch.output import MAX_LINE_BYTES, LineSplitter
from rubato.wire.cluster import ActionAnswer, EventReport, Failure, MetricRow, Outcome, Report
from rubato.wire.codec import to_json
from service.redaction import MIN_CHARS, MIN_PREFIX, WITHHELD, Redactor, forms_of
from tests.simulated_controller import RUNNING, TIME, log_line

CANARY = "s3cr3t-canary-value"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSj\n-----END KEY-----\n"


def redactor(**values: str) -> Redactor:
    return Redactor({name: [value] for name, value in values.items()})


def test_a_value_is_replaced_by_its_name_wherever_it_stands() -> None:
    clean = redactor(TOKEN=CANARY)
    assert clean.text(f"x{CANARY}{CANARY}y") == "x[secret TOKEN][secret TOKEN]y"
    assert clean.text("nothing here") == "nothing here"


def test_of_two_that_contain_each_other_the_longer_one_wins() -> None:
    assert redactor(A="password", B="password-and-more").text("is password-and-more") == "is [secret B]"


LETTERS = st.text("ab-]^\n", min_size=MIN_CHARS, max_size=12)


@given(st.lists(LETTERS, min_size=1, max_size=5), st.lists(st.text("ab-]^\n", max_size=30), min_size=1, max_size=5))
def test_it_finds_what_an_alternation_of_all_forms_would(values: list[str], texts: list[str]) -> None:
    forms = sorted({form for value in values for form in forms_of(value)}, key=len, reverse=True)
    oracle = re.compile("|".join(map(re.escape, forms)))
    clean = Redactor({"S": values})
    for text in (*texts, *(f"{text}{value}{text}" for text in texts for value in values)):
        assert clean.text(text) == oracle.sub("[secret S]", text)


AWKWARD = 'pa"ss\\wörd/with $igns & spaces'


@pytest.mark.parametrize("form", [json.dumps, repr, quote, lambda text: quote(text, safe=""), str])
def test_forms_in_which_programs_print_it(form: object) -> None:
    assert callable(form)
    text = redactor(TOKEN=AWKWARD).text(f"got {form(AWKWARD)} here")
    assert "ss" not in text
    assert "[secret TOKEN]" in text


def test_each_line_of_a_long_one_counts() -> None:
    said = "".join(LineSplitter().feed(f"key: {KEY}".encode()))
    assert "MIIEvQ" in said
    lines = [redactor(KEY=KEY).text(line) for line in LineSplitter().feed(f"key: {KEY}".encode())]
    assert lines == ["key: [secret KEY]", "[secret KEY]", "[secret KEY]", "[secret KEY]"]


def test_a_value_that_comes_in_pieces_is_whole_in_its_line() -> None:
    splitter = LineSplitter()
    lines = [line for byte in f"a {CANARY} b\n".encode() for line in splitter.feed(bytes([byte]))]
    assert [redactor(TOKEN=CANARY).text(line) for line in lines] == ["a [secret TOKEN] b"]


@given(st.integers(MAX_LINE_BYTES - 40, MAX_LINE_BYTES + 5))
@example(MAX_LINE_BYTES - MIN_PREFIX)
def test_a_line_cut_within_a_value_shows_no_more_than_a_stub(before: int) -> None:
    line = next(LineSplitter().feed(b"." * before + CANARY.encode() + b"." * 50 + b"\n"))
    assert "bytes cut" in line
    text = redactor(TOKEN=CANARY).text(line)
    assert CANARY[:MIN_PREFIX] not in text
    assert re.search(r" \.\.\. \([0-9]+ bytes cut\)$", text)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=MIN_CHARS, max_size=40), st.text(), st.text())
def test_no_text_around_it_hides_a_value(value: str, before: str, after: str) -> None:
    text = redactor(TOKEN=value).text(before + value + after)
    assert value.strip() not in text.replace("[secret TOKEN]", "") or len(value.strip()) < MIN_CHARS


REPORT = Report(
    attempt=1,
    batch=1,
    wire_version=1,
    observed=replace(RUNNING, reason=f"waits for {CANARY}"),
    events=(
        EventReport(1, TIME, "worker.ready", f"said {CANARY}", data={"a": [{CANARY: CANARY, "n": 1}], "b": None}),
        EventReport(2, TIME, "checkpoint.committed", CANARY, data={"checkpoint_id": "1-10"}),
        EventReport(3, TIME, "checkpoint.failed", CANARY, data={"checkpoint_id": "1-20", "cause": CANARY}),
    ),
    metrics=(MetricRow(1, TIME, 1, 1, {"loss": 0.5, CANARY: 1.0}),),
    logs=(log_line(f"line {CANARY}"),),
    answers=(ActionAnswer(1, "done", f"it stands in {CANARY}", text=f'File "x.py", line 1\n  sign_in("{CANARY}")'),),
    outcome=Outcome(
        "failed",
        failure=Failure("user", "user_code_error", CANARY, traceback=CANARY, last_output=("fine", CANARY)),
    ),
)


def test_every_text_of_a_report_is_clean_and_nothing_else_changes() -> None:
    clean = redactor(TOKEN=CANARY).report(REPORT)
    text = json.dumps(to_json(clean))
    assert CANARY in json.dumps(to_json(REPORT))
    assert CANARY not in text
    assert text.replace("[secret TOKEN]", CANARY) == json.dumps(to_json(REPORT))


def test_without_the_values_all_text_is_withheld_and_what_the_service_reads_stays() -> None:
    clean = Redactor({}, is_blind=True).report(REPORT)
    assert clean.logs[0].line == clean.events[0].message == clean.observed.reason == WITHHELD
    assert clean.outcome is not None
    assert clean.outcome.failure is not None
    assert clean.outcome.failure.last_output == (WITHHELD, WITHHELD)
    assert clean.events[1].data == {"checkpoint_id": "1-10"}
    assert clean.events[2].data == {"checkpoint_id": WITHHELD, "cause": WITHHELD}
    assert (clean.answers[0].number, clean.answers[0].state) == (1, "done")
    assert (clean.answers[0].message, clean.answers[0].text) == (WITHHELD, WITHHELD)
    assert clean.metrics[0].values["loss"] == 0.5
