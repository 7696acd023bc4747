"""What the exit code says; the same for every command, so that scripts can rely on it."""

from __future__ import annotations

from enum import IntEnum

from rubato.errors import ApiForbidden, ApiNotFound, ApiUnauthenticated, RubatoError, RunNotFound, ServiceUnreachable
from rubato.wire.status import FINAL


class ExitCode(IntEnum):
    """Exit codes of `rubato`, and what each means."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> ExitCode:  # noqa: D102
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "done, or as waited for"
    ERROR = 1, "it went wrong; the message says what, and what to do"
    USAGE = 2, "the command line is not valid"
    AUTH = 4, "no token, or one that may not do this"
    UNREACHABLE = 5, "nothing answers at the service's address"
    JOB_FAILED = 100, "the job failed"
    NOT_FINISHED = 101, "not in time, paused, or detached by Ctrl-C while the job goes on"
    NOT_FOUND = 102, "there is no such job, checkpoint, ..."
    CANCELLED = 103, "the job was cancelled"
    INTERRUPTED = 130, "Ctrl-C; what a shell reports for SIGINT"


def code_for_error(error: RubatoError) -> ExitCode:
    """The exit code for an error."""
    if isinstance(error, ApiUnauthenticated | ApiForbidden):
        return ExitCode.AUTH
    if isinstance(error, ApiNotFound | RunNotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, ServiceUnreachable):
        return ExitCode.UNREACHABLE
    return ExitCode.ERROR


def code_for_status(status: str, wanted: tuple[str, ...] = ()) -> ExitCode:
    """The exit code of a wait that ended with the job in `status`, where `wanted` was waited for (default: success)."""
    if status in (wanted or ("succeeded",)):
        return ExitCode.OK
    if status == "failed":
        return ExitCode.JOB_FAILED
    if status == "cancelled":
        return ExitCode.CANCELLED
    # It succeeded, but never was what was waited for: that will not come any more.
    return ExitCode.ERROR if status in FINAL else ExitCode.NOT_FINISHED
