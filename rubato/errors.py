"""The exceptions of Rubato, in one tree.

RubatoError
|- UserError                 something the user can mend; the message says how
|  |- SpecError              a job spec that does not hold; carries every finding, not only the first
|  |- ModelError             the training program breaks a rule of the engine (a layer, an optimizer, a loop)
|  |  |- SpecMismatch        what the spec asks for does not go with this program; the message names the field
|  |  `- NonFiniteGradient   a gradient is inf or nan, and the job is to fail then
|  |- EntrypointError        the file, module or function named by the spec cannot be loaded
|  |- PackageError           a working folder that cannot be packed or unpacked safely
|  `- RunNotFound            there is no such run of `rubato run`
|- GenerationLost            the present membership is over (a peer died or the controller revoked it); recovered inside
|- ProtocolError             a message that breaks the protocol: stale, doubled, or from another wire version
|  `- StaleAttempt           the sender's attempt was superseded; it must stop without touching anything
|- Diverged                  members that must be byte-equal are not
|- ApiError                  the service refused a request; carries its problem document
|  |- ApiUnauthenticated     no token, or one that the service does not know (401)
|  |- ApiForbidden           the token is known, and may not do this (403)
|  `- ApiNotFound            there is no such job, checkpoint, ... (404)
|- ServiceUnreachable        nothing answers at the service's address
|- KeeperError               the processes of a RUBATO_HOME cannot be started or ended
`- CheckpointError           a checkpoint cannot be written, or fails its hashes
   |- CheckpointCorrupt      the bytes on storage are not those the manifest names
   `- StorageUnreachable     the storage does not answer, or not to us: nothing is known of what lies there

Beside it stands LeaveTraining, which ends user code where this worker's part is over: no Exception, for programs catch
those. Below RubatoError, too, is what never leaves its own part of the code, and stands there: `launch/forkserver`, and
how the service answers a cluster (`jobs/service_link`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any


class RubatoError(Exception):
    """Root of the tree."""


class UserError(RubatoError):
    """Something the user can mend; the message says how."""


@dataclass(frozen=True)
class Finding:
    """One thing wrong with an input: where it is (`workers.max`), and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def meant(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'train'?`, behind what names a thing that there is not; nothing where no name is close."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def unknown_field(given: str, known: Collection[str]) -> str:
    """What is said of a field that there is not: the one that was meant, or which there are."""
    advice = meant(given, known) or f"; known fields: {', '.join(known)}"
    return f"unknown field{advice}"


class SpecError(UserError):
    """A job spec that does not hold; `findings` lists every problem, not only the first."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings
        super().__init__("; ".join(str(finding) for finding in findings))


def check_rules(*rules: tuple[bool, str, str]) -> None:
    """Raise every broken rule: (holds, field, message).

    Raises:  SpecError: with all findings.
    """
    findings = [Finding(path, message) for holds, path, message in rules if not holds]
    if findings:
        raise SpecError(findings)


class ModelError(UserError):
    """The training program breaks a rule of the engine."""


class NotOnAllWorkers(ModelError):
    """Some workers are in an exchange, and others in another one."""


class SpecMismatch(ModelError):
    """What the spec asks for does not go with this program; the message names the field."""


class NonFiniteGradient(ModelError):
    """A gradient is inf or nan, and the job is to fail then."""


class EntrypointError(UserError):
    """The file, module or function named by the spec cannot be loaded."""


class PackageError(UserError):
    """A working folder that cannot be packed or unpacked safely."""


class RunNotFound(UserError):
    """There is no such run of `rubato run`."""


class GenerationLost(RubatoError):
    """The present membership is over: a peer died, or the controller revoked the generation."""


class ProtocolError(RubatoError):
    """A message that breaks the protocol."""


class StaleAttempt(ProtocolError):
    """The sender's attempt was superseded."""


class Diverged(RubatoError):
    """Members that must be byte-equal are not."""


class ApiError(RubatoError):
    """The service refused a request.

    Attributes:
        status: HTTP status, or 0 where the reply was no HTTP at all.
        code: the problem's code, such as `invalid_spec`; empty where the reply held no problem document.
        findings: what is wrong with the input, each with its path.
        problem: the whole document.
    """

    def __init__(self, message: str, *, status: int = 0, problem: dict[str, Any] | None = None) -> None:
        self.status = status
        self.problem = problem or {}
        self.code = str(self.problem.get("code", ""))
        self.findings = [
            Finding(str(error.get("path", "")), str(error.get("message", "")))
            for error in self.problem.get("errors") or []
            if isinstance(error, dict)
        ]
        super().__init__(message)


class ApiUnauthenticated(ApiError):
    """The service knows no such token, or was given none."""


class ApiForbidden(ApiError):
    """Who asks is known, and may not do this."""


class ApiNotFound(ApiError):
    """The service has no such thing."""


class ServiceUnreachable(RubatoError):
    """Nothing answers at the service's address."""


class KeeperError(RubatoError):
    """The processes of a RUBATO_HOME cannot be started or ended; the message says why and what to do."""


class LeaveTraining(BaseException):
    """Ends user code where this worker's part is over. Not an Exception: programs catch those."""


class CheckpointError(RubatoError):
    """A checkpoint cannot be written or read."""


class CheckpointCorrupt(CheckpointError):
    """The bytes on storage are not those that the manifest names."""


class StorageUnreachable(CheckpointError):
    """The storage does not answer, or not to us: nothing is known of what lies there."""
