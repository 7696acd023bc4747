from __future__ import annotations

import errno
import json
import os
import sqlite3

import psycopg.errors
import pytest
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, InternalError, OperationalError
from starlette.requests import Request

from api.problems import SILENT, STATUS, TITLE, problem_for, shorten, why_refused
from rubato.errors import Finding
from service.errors import ErrorKind, ServiceError


def test_every_kind_of_error_has_a_status_and_a_title() -> None:
    assert set(STATUS) == set(ErrorKind) == set(TITLE)
    assert all(400 <= status < 600 for status in STATUS.values())


def sqlite_error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(name)
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OperationalError("", {}, psycopg.errors.DiskFull()), "is full"),
        (OperationalError("", {}, sqlite_error("SQLITE_FULL")), "is full"),
        (InternalError("", {}, psycopg.errors.ReadOnlySqlTransaction()), "takes no changes"),
        (OperationalError("", {}, sqlite_error("SQLITE_READONLY")), "takes no changes"),
        (InternalError("", {}, psycopg.errors.IdleInTransactionSessionTimeout()), SILENT),
        (OperationalError("", {}, psycopg.errors.AdminShutdown()), SILENT),
        (OperationalError("", {}, sqlite_error("SQLITE_BUSY")), SILENT),
        (InterfaceError("", {}, psycopg.InterfaceError()), SILENT),
        (InternalError("", {}, psycopg.errors.InFailedSqlTransaction()), None),
        (IntegrityError("", {}, psycopg.errors.UniqueViolation()), None),
    ],
)
def test_why_the_database_took_nothing(error: DBAPIError, told: str | None) -> None:
    found = why_refused(error)
    assert found is None if told is None else found is not None and told in found


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE])
def test_a_disk_that_takes_nothing_is_asked_again(number: int) -> None:
    request = Request({"type": "http", "path": "/", "headers": [], "query_string": b""})
    response = problem_for(request, OSError(number, os.strerror(number)))
    assert (response.status_code, json.loads(bytes(response.body))["code"]) == (503, "not_ready")
    assert response.headers["retry-after"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"There is no job {'x' * 5000!r}.", f"There is no job '{'x' * 100}...'."),
        (
            f"There is no job {'x y ' * 500!r}, nor {'b' * 101!r}.",
            f"There is no job '{'x y ' * 25}...', nor '{'b' * 100}...'.",
        ),
        (f"got {'1' * 5000}.", f"got {'1' * 100}..."),
        (f"There is no job {'x' * 100!r}.", f"There is no job '{'x' * 100}'."),
        (f"label must be {chr(34)}it's {'x' * 200}{chr(34)}", f"label must be {chr(34)}it's {'x' * 95}...{chr(34)}"),
        (f"a project's words {'go on ' * 40} and a job's", f"a project's words {'go on ' * 40} and a job's"),
        (f"the workers' words {'go on ' * 40} and 'so'", f"the workers' words {'go on ' * 40} and 'so'"),
        ("'" * 1000, "'" * 1000),
    ],
)
def test_no_value_is_told_at_length(text: str, shown: str) -> None:
    assert shorten(text) == shown


def test_a_problem_tells_no_value_at_length() -> None:
    request = Request({"type": "http", "path": "/", "headers": [], "query_string": b""})
    long = "x" * 5000
    error = ServiceError(ErrorKind.INVALID_SPEC, f"no {long!r}", findings=[Finding(long, f"no {long!r}")])
    assert len(bytes(problem_for(request, error).body)) < 1000
