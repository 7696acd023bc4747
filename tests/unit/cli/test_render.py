from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from rubato.cli.output import stdout_console
from rubato.cli.render import (
    describe_failure,
    describe_job,
    format_age,
    format_number,
    job_table,
    node_table,
    say_status,
)
from rubato.client import Job
from rubato.wire.units import format_bytes, format_pause, format_seconds, three_digits

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("since", "age"),
    [
        (None, "-"),
        ("2026-01-02T11:59:30Z", "30s"),
        ("2026-01-02T12:00:05Z", "0s"),
        ("2026-01-02T11:00:01Z", "59m"),
        ("2026-01-02T12:00:00+02:00", "2h"),
        ("2025-12-30T12:00:00Z", "3d"),
    ],
)
def test_ages(since: str | None, age: str) -> None:
    assert format_age(since, NOW) == age


def test_sizes_have_a_unit_that_fits() -> None:
    sizes = [format_bytes(count) for count in (0, 412, 999.7, 3_456, 999_700, 2_345_678, 3e9)]
    assert sizes == ["0 B", "412 B", "1 kB", "3.46 kB", "1 MB", "2.35 MB", "3 GB"]


def test_steps_have_a_unit_that_fits_and_no_exponent() -> None:
    told = [format_seconds(seconds) for seconds in (0.0, 4.12e-5, 0.01234, 0.9994, 0.9996, 12.34, 1594.4)]
    assert told == ["0 ms", "0.0412 ms", "12.3 ms", "999 ms", "1 s", "12.3 s", "1,594 s"]
    assert [three_digits(value) for value in (0.5, 999.4, 999.6, 25_600.0)] == ["0.5", "999", "1,000", "25,600"]


def test_pauses_have_a_unit_that_fits() -> None:
    assert [format_pause(seconds) for seconds in (0.0, 0.0414, 0.9994, 12.34)] == ["0 ms", "41 ms", "999 ms", "12.3 s"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.123456, "0.1235"),
        (999.96, "1000"),
        (12943.7, "12944"),
        (-1.23456e8, "-123456000"),
        (1.2345e12, "1.234e+12"),
        (0.0000123456, "1.235e-05"),
        (7, "7"),
        ("x", "x"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_four_digits_and_all_before_the_point(value: object, shown: str) -> None:
    assert format_number(value) == shown


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("running", "a is running"),
        ("succeeded", "a succeeded"),
        ("failed", "a failed"),
        ("cancelled", "a was cancelled"),
    ],
)
def test_a_status_is_said_as_people_say_it(status: str, said: str) -> None:
    assert say_status(Job(id="job_1", name="a", status=status)) == said


def test_a_job_that_has_ended_has_no_workers_to_count() -> None:
    job = Job(id="job_1", name="a", status="succeeded", desired_workers=2, min_workers=1, max_workers=4)
    assert dict(describe_job(job, NOW))["workers"] == "none any more; 2 were wanted, 1 to 4 allowed"
    living = replace(job, status="running", workers=1)
    assert dict(describe_job(living, NOW))["workers"] == "1 of 2 wanted, 1 to 4 allowed"


def test_a_failure_is_told_without_names_of_fields() -> None:
    told = describe_failure({"worker_id": "w1.2", "exit_code": 3, "rank": 1})
    assert told == [("failure worker", "w1.2"), ("failure rank", "1"), ("failure exit code", "3")]


@pytest.mark.parametrize(("position", "shown"), [(2, "position 2: waits for 2 slots"), (None, "waits for 2 slots")])
def test_the_queue_is_told_also_before_the_scheduler_has_looked(position: int | None, shown: str) -> None:
    queue = {"position": position, "reason": "waits for 2 slots"}
    job = Job(id="job_1", name="digits", status="queued", queue=queue)
    assert dict(describe_job(job, NOW))["queue"] == shown


@pytest.mark.parametrize(
    ("status", "phase", "reason", "shown"),
    [
        ("running", "training", None, "running (training)"),
        ("queued", None, "unschedulable", "queued (unschedulable)"),
        ("recovering", "repairing", "controller_lost", "recovering (repairing, controller_lost)"),
        ("failed", "repairing", "hang", "failed (hang)"),
    ],
)
def test_a_status_has_its_reason_beside_it(status: str, phase: str | None, reason: str | None, shown: str) -> None:
    job = Job(id="job_1", name="digits", status=status, phase=phase, reason=reason)
    assert dict(describe_job(job, NOW))["status"] == shown


LONG = Job(
    id="job_01k9zzzzzzzzzzzzzzzzzzzzzz", name="a-name-" * 9, status="recovering", step=123456, total_steps=999999
)


def test_a_table_for_a_script_is_whole(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stdout_console().print(job_table([LONG], NOW), soft_wrap=True)
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == ["ID", "NAME", "STATUS", "WORKERS", "STEP", "LOSS", "AGE"]
    assert row.split() == [LONG.id, LONG.name, "recovering", "0", "123456/999999", "-", "-"]


def test_a_narrow_terminal_folds_the_name_and_keeps_the_id() -> None:
    shown = io.StringIO()
    Console(file=shown, width=90, force_terminal=True, color_system=None).print(job_table([LONG], NOW), soft_wrap=True)
    lines = shown.getvalue().splitlines()
    assert lines[1].startswith(LONG.id)
    assert max(map(len, lines)) <= 90
    folded = "".join(line[len(LONG.id) :].split()[0] for line in lines[1:])
    assert folded == LONG.name


def test_a_table_for_a_script_has_the_reason_in_the_line_of_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    stdout_console().print(job_table([replace(LONG, reason="controller_lost")], NOW), soft_wrap=True)
    (_, row) = capsys.readouterr().out.splitlines()
    assert "recovering (controller_lost)  " in row


@pytest.mark.parametrize(("columns", "has_room"), [(60, False), (80, True), (120, True)])
def test_on_a_terminal_reasons_stand_below_statuses_where_there_is_room(columns: int, has_room: bool) -> None:
    shown = io.StringIO()
    job = replace(LONG, reason="controller_lost")
    Console(file=shown, width=columns).print(job_table([job], NOW, columns))
    lines = shown.getvalue().splitlines()
    assert job.status in lines[1]
    assert ("(controller_lost)" in lines[2]) == has_room
    assert lines[0].split()[-1] == {60: "DONE", 80: "LOSS", 120: "AGE"}[columns]


@pytest.mark.parametrize("columns", [60, 80])
def test_on_a_narrow_terminal_ids_stay_whole_below_the_names(columns: int) -> None:
    shown = io.StringIO()
    Console(file=shown, width=columns).print(job_table([LONG], NOW, columns))
    lines = shown.getvalue().splitlines()
    assert LONG.id in {line.strip() for line in lines}
    assert all(len(line.rstrip()) <= columns for line in lines)
    assert LONG.status in lines[1]


@pytest.mark.parametrize(
    ("columns", "heads"), [(60, "HOST STATE CPU GPU JOBS"), (90, "HOST STATE CPU GPU WORKERS JOBS")]
)
def test_on_a_narrow_terminal_nodes_keep_whole_heads_hosts_and_states(columns: int, heads: str) -> None:
    node = {
        "node_id": "0123456789abcdef",
        "hostname": "ray-worker-1",
        "address": "10.0.0.1",
        "state": "cordoned",
        "cpu": 64.0,
        "cpu_used": 16.0,
        "gpu": 8.0,
        "gpu_used": 2.0,
        "accelerators": ["NVIDIA-H200"],
        "memory": 1 << 37,
        "workers_left": 3,
        "jobs": [{"name": "digits-with-a-long-name"}, {"name": "stars"}],
    }
    shown = io.StringIO()
    console = Console(file=shown, width=columns, force_terminal=True, color_system=None)
    console.print(node_table([node], columns), soft_wrap=True)
    first, *rows = shown.getvalue().splitlines()
    assert first.split() == heads.split()
    assert rows[0].split()[:4] == ["ray-worker-1", "cordoned", "16/64", "2/8"]
    assert rows[1].startswith("0123456789ab ")
    assert all(len(row.rstrip()) <= columns for row in rows)
    assert "stars" in shown.getvalue()
