"""What the end of a training process means: whose fault, and whether the job may go on. Pure."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from dataclasses import dataclass, field

from rubato.engine.coordinator.hangs import Hung
from rubato.engine.coordinator.orders import Terms
from rubato.errors import NonFiniteGradient, NotOnAllWorkers
from rubato.wire.cluster import Failure
from rubato.wire.reasons import Reason
from rubato.wire.worker import Exited, UserFailed

CRASHES_AT_ONE_STEP = 3
"""Rounds of crashes (SIGSEGV, an unexplained exit) without a step between them before the program is blamed."""
HANGS_AT_ONE_STEP = 3
"""Times that workers were fenced at one step before the program is blamed: all of a generation are one time."""
REPAIRS_AT_ONE_STEP = 3
"""Repairs without a step or a death between them before the program is blamed, where an exchange raised; where a
network is between the workers, so many more than `restart.max_restarts`."""
LONGEST_REPAIR_WAIT_S = 30.0
"""Between two of the latter: looking again costs little, and the network may be back at any time."""
HANG_ADVICE = (
    "Its stacks are in the last lines of its output. Where the stage may take that long, say so with "
    "run.long_phase(...) or a larger limits.hang_timeout."
)
_NETWORK = re.compile(
    r"connect|socket|network|unreachable|no route|broken pipe|timed? ?out|closed by peer|reset by peer|remote process|"
    r"lost touch|revoked",
    re.IGNORECASE,
)
"""Words of gloo, of NCCL and of the system, and of our own, for links that fail."""
_OF_SYSTEM = frozenset(
    {"OSError", "TimeoutError", "BlockingIOError", "ConnectionError", "ConnectionResetError", "BrokenPipeError"}
)
"""Exceptions with which a file system or a network fails, and then fails all workers; not those of a wrong path."""
BENIGN_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Sent from outside: never the program's own fault."""


@dataclass
class Verdicts:
    """Remembers what went wrong, to tell a bug that repeats from bad luck."""

    raised: defaultdict[tuple[int, int], set[object]] = field(default_factory=lambda: defaultdict(set))
    """By (step, microbatch): who raised; of what the system raised, in which generation: that may take all at once."""
    crashed: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By step: the generations in which members crashed: one cause may take all of them at once."""
    hung: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By step: the generations in which members were fenced."""
    repairs: int = 0
    """Begun since the last step and the last death."""
    repaired_step: int = -1

    def on_repair(self, step: int) -> None:
        """A repair begins where so many steps are committed."""
        self.repairs = self.repairs + 1 if step == self.repaired_step else 1
        self.repaired_step = step

    def on_death(self) -> None:
        """A worker died: that is what repairs are for."""
        self.repairs = 0

    def repair_wait_s(self, terms: Terms, *, is_raised: bool) -> float:
        """Seconds before the survivors are brought together again; the first time at once.

        Args: is_raised: as in `on_no_progress`.
        """
        if is_raised or self.repairs < 2:
            return 0.0
        return min(LONGEST_REPAIR_WAIT_S, terms.backoff_s(self.repairs - 1))

    def on_no_progress(self, because: str, terms: Terms, *, is_raised: bool) -> Failure | None:
        """The failure of the job where repairs lead nowhere, or None.

        Args: is_raised: whether an exchange of a worker raised, or was left out; else workers lost touch.
        """
        if self.repairs < REPAIRS_AT_ONE_STEP + (0 if is_raised else terms.max_restarts):
            return None
        advice = (
            "All workers must go through the same exchanges with data of the same size (every run.evaluate too) and "
            "need the memory for them: mend the program or give each worker more memory, and submit again"
            if is_raised
            else "Look at the network between the workers; a larger restart.max_restarts bears a longer outage"
        )
        return Failure(
            failure_class="user" if is_raised else "infrastructure",
            reason=Reason.NO_PROGRESS,
            message=(
                f"Step {self.repaired_step + 1} was tried {self.repairs} times, and its workers lost each other each "
                f"time although none had died; the last time: {because}. {advice}."
            ),
            step=self.repaired_step,
        )

    def on_hang(self, hung: Hung, generation: int) -> Failure | None:
        """The failure of the job where members hang again and again at one step, or None.

        Args: generation: that trains; its members hang together where what they all wait for (a file system) stands
            still, and that is no more than once.
        """
        times = self.hung[hung.step]
        times.add(generation)
        if not hung.stage or len(times) < HANGS_AT_ONE_STEP:
            return None
        return Failure(
            failure_class="user",
            reason=Reason.HANG,
            message=(
                f"Workers hung {len(times)} times at step {hung.step}; the last one {hung.because}. {HANG_ADVICE}"
            ),
            step=hung.step,
            microbatch=hung.microbatch,
        )

    def on_user_error(
        self, error: UserFailed, generation: int, *, no_retry: tuple[int, ...], has_trained: bool
    ) -> Failure | None:
        """The failure of the job, or None where the worker is replaced and the step tried again.

        Before the first step any exception is final, and so is that workers do not do the same, which a restart could
        hide. Else the same microbatch must raise twice (its heir counts): the first time may be the machine's fault.

        Args: generation: that trains.
        """
        final = not has_trained or error.exit_code in no_retry or error.error.startswith(f"{NotOnAllWorkers.__name__}:")
        if error.where == "step":
            times = self.raised[error.step or 0, -1 if error.microbatch is None else error.microbatch]
            times.add(generation if error.error.partition(":")[0] in _OF_SYSTEM else error.incarnation)
            # What was not finite is so for every heir, too.
            final = final or len(times) >= 2 or reason_of(error.error) is Reason.NON_FINITE
        if not final:
            return None
        place = {
            "import": "while loading the training program",
            "setup": "before the first step",
            "step": f"in step {error.step}" + ("" if error.microbatch is None else f", microbatch {error.microbatch}"),
        }[error.where]
        advice = "The traceback names the line; mend the program" if error.traceback else "Mend the spec or the program"
        return Failure(
            failure_class="user",
            reason=reason_of(error.error),
            message=f"{error.error} ({place}). {advice} and submit again.",
            step=error.step,
            microbatch=error.microbatch,
            traceback=error.traceback,
        )

    def on_crash(
        self, exited: Exited, step: int, generation: int, *, no_retry: tuple[int, ...], has_trained: bool
    ) -> Failure | None:
        """The failure of the job after an exit that the program did not explain, or None where it goes on.

        Args:
            step: where the worker stood.
            generation: that trains.
            has_trained: whether the worker did; of others `starting` decides.
        """
        how = describe_exit(exited)
        if _code_of(exited) in no_retry:
            return Failure(
                failure_class="user",
                reason=Reason.USER_CODE_ERROR,
                message=f"A training process {how}; restart.no_retry_on_exit_codes says not to try again.",
                exit_code=exited.exit_code,
                step=step,
                last_output=exited.last_output,
            )
        if not has_trained or is_from_outside(exited):
            return None
        times = self.crashed[step]
        times.add(generation)
        if len(times) < CRASHES_AT_ONE_STEP:
            return None
        return Failure(
            failure_class="user",
            reason=Reason.USER_CODE_ERROR,
            message=(
                f"Training processes died {len(times)} times at step {step}, last one {how}. "
                "Look at the last output; a native crash (SIGSEGV, SIGABRT) or os._exit leaves no traceback."
            ),
            exit_code=exited.exit_code,
            signal=exited.signal,
            step=step,
            last_output=exited.last_output,
        )


def _code_of(exited: Exited) -> int | None:
    """Its exit code, or below 0 the signal that ended it."""
    number = signal.Signals.__members__.get(exited.signal or "")
    return exited.exit_code if number is None else -number


def reason_of(error: str) -> Reason:
    """Of an exception of the program, as `Type: text`."""
    if is_out_of_memory(error):
        return Reason.OUT_OF_MEMORY
    if error.startswith(f"{NonFiniteGradient.__name__}:"):
        return Reason.NON_FINITE
    if "does not have a deterministic implementation" in error:
        return Reason.NOT_DETERMINISTIC
    return Reason.USER_CODE_ERROR


def is_out_of_memory(error: str) -> bool:
    """Whether an exception, as `Type: text`, says that there was no memory left."""
    kind = error.partition(":")[0].rpartition(".")[2]
    return kind in ("MemoryError", "OutOfMemoryError") or "can't allocate memory" in error


def is_of_network(cause: str) -> bool:
    """Whether a worker lost touch with the others by no fault of a program: all that sockets say, and a revoke."""
    return _NETWORK.search(cause) is not None


def is_raised(cause: str) -> bool:
    """Whether an exchange raised for another reason; nothing: workers waited for each other."""
    return bool(cause) and not is_of_network(cause)


def is_from_outside(exited: Exited) -> bool:
    """Whether something else than the program ended the process."""
    return bool(exited.cause) or exited.signal in BENIGN_SIGNALS


def was_killed_for_memory(exited: Exited) -> bool:
    """Whether the kernel, or Ray, ended the process because its host had none left."""
    return "memory" in exited.cause


def describe_exit(exited: Exited) -> str:
    """In words: `was killed by SIGKILL`, `exited with code 3`."""
    if exited.signal:
        return f"was killed by {exited.signal}"
    if exited.exit_code is not None:
        return f"exited with code {exited.exit_code}"
    return "was lost"
