"""The one error that use-cases raise for what a caller did or asked; the kind decides the HTTP status."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from rubato.errors import Finding, RubatoError, SpecError


class ErrorKind(StrEnum):
    """What was wrong; also the `code` of the problem document."""

    INVALID_SPEC = "invalid_spec"
    INVALID_REQUEST = "invalid_request"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    JOB_FINAL = "job_final"
    NAME_TAKEN = "name_taken"
    CONFLICT = "conflict"
    PRECONDITION_FAILED = "precondition_failed"
    OUT_OF_BOUNDS = "out_of_bounds"
    QUOTA_EXCEEDED = "quota_exceeded"
    RATE_LIMITED = "rate_limited"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    PACKAGE_UNKNOWN = "package_unknown"
    PACKAGE_INVALID = "package_invalid"
    PACKAGE_TOO_LARGE = "package_too_large"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    HOST_NOT_ALLOWED = "host_not_allowed"
    LEASE_HELD = "lease_held"
    FENCED = "fenced"
    STORAGE_UNREACHABLE = "storage_unreachable"
    NOT_READY = "not_ready"
    INTERNAL = "internal"


class ServiceError(RubatoError):
    """Something the caller did or asked that cannot be done; the message says what to do instead."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        findings: Sequence[Finding] = (),
        extra: dict[str, Any] | None = None,
    ) -> None:
        self.kind = kind
        self.message = message
        self.findings = tuple(findings)
        self.extra = extra or {}
        super().__init__(message)


def invalid_spec(error: SpecError) -> ServiceError:
    """The refusal of a job spec, naming every finding."""
    count = len(error.findings)
    summary = "1 problem" if count == 1 else f"{count} problems"
    text = str(error)
    end = "" if text.endswith(("?", ".")) else "."
    return ServiceError(ErrorKind.INVALID_SPEC, f"The job spec has {summary}: {text}{end}", findings=error.findings)


def not_found(what: str, name: str) -> ServiceError:
    """The reply for an id that does not exist."""
    return ServiceError(ErrorKind.NOT_FOUND, f"There is no {what} {name!r}.")
