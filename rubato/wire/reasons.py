"""Why a job is not, or no longer, running: one word for programs, with what it means and what to do about it.

The set is open: a newer peer may name one that is not here.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The `reason` of a status and of a failure."""

    meaning: str
    advice: str

    def __new__(cls, value: str, meaning: str = "", advice: str = "") -> Reason:
        """A member of this value."""
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.advice = value, meaning, advice
        return member

    USER_CODE_ERROR = (
        "user_code_error",
        "The training program raised, or its process crashed, in a way that trying again does not mend.",
        "Read the traceback or the last lines, mend the program and submit again; checkpoint.resume_from goes on from "
        "a checkpoint.",
    )
    OUT_OF_MEMORY = (
        "out_of_memory",
        "A worker needed more memory than there was.",
        "Give a worker more memory (resources_per_worker.memory), cut the batch finer (batch.num_microbatches), or "
        "shrink the model.",
    )
    NOT_DETERMINISTIC = (
        "not_deterministic",
        "The model uses an operation of which torch has no version that gives the same bits each time.",
        "Use another operation in the line that the traceback names, or give equal bits up with reproducible: false.",
    )
    START_FAILED = (
        "start_failed",
        "Workers ended again and again before they ever trained.",
        "The last lines say why: mostly an import, a library that the cluster lacks, or too little memory. `rubato "
        "run` tries the program without a cluster.",
    )
    HANG = (
        "hang",
        "Workers stood still again and again at one step.",
        "The stacks in the last lines say where. A step that is slow but right needs run.long_phase(...) or a larger "
        "limits.hang_timeout.",
    )
    NO_PROGRESS = (
        "no_progress",
        "Workers lost touch with each other again and again at one step although none had died.",
        "All workers must go through the same exchanges (every run.evaluate too), with data of the same size; where "
        "the cause names a connection, look at the network between them (restart.max_restarts says how often it is "
        "tried).",
    )
    DIVERGED = (
        "diverged",
        "The workers' states differed, and it was no accident of one machine.",
        "Register all that influences training (run.register, run.state), and look for a layer or a data set that is "
        "not deterministic.",
    )
    NON_FINITE = (
        "non_finite",
        "A gradient was not finite, and on_non_finite is `fail`.",
        "Lower the learning rate or clip the gradients, or let on_non_finite skip such steps; go on from a checkpoint "
        "before it.",
    )
    CHECKPOINT_INVALID = (
        "checkpoint_invalid",
        "No checkpoint holds, the one to begin from cannot be used, or another run saves in their folder.",
        "Put one back from a copy, or begin from an older one (checkpoint.resume_from); the message names each damage.",
    )
    MAX_RESTARTS_EXCEEDED = (
        "max_restarts_exceeded",
        "All workers were lost more often than restart.max_restarts allows.",
        "See in the events why they were lost each time, then submit again with checkpoint.resume_from.",
    )
    CONTROLLER_LOST = (
        "controller_lost",
        "The job's controller has been silent for longer than its lease; another one takes its workers over.",
        "Nothing, where it lasts for seconds. Else look whether the agent and Ray run: `rubato doctor`.",
    )
    PREEMPTED = (
        "preempted",
        "A more important job needed the slots; the job was paused with a checkpoint and waits in the queue.",
        "Nothing: it goes on by itself. `scheduling.preemptible: false` keeps a job from it; a higher priority mostly "
        "does.",
    )
    UNSCHEDULABLE = (
        "unschedulable",
        "No node of the cluster could ever hold workers.min workers of this size.",
        "Lower workers.min or resources_per_worker, or add nodes.",
    )
    QUEUE_TIMEOUT = (
        "queue_timeout",
        "The job waited for slots for longer than limits.queue_timeout.",
        "Raise limits.queue_timeout or scheduling.priority, lower workers.min, or free slots.",
    )
    DEADLINE_EXCEEDED = (
        "deadline_exceeded",
        "The job held slots for longer than limits.max_duration.",
        "Raise limits.max_duration and submit again with checkpoint.resume_from.",
    )
    CANCELLED_BY_USER = (
        "cancelled_by_user",
        "Somebody cancelled the job; the event names them.",
        "Nothing; submit again with checkpoint.resume_from to go on.",
    )


_OF_ERRORS = (
    (
        "ModuleNotFoundError",
        "Install the library where the workers run (on one machine: where Rubato is installed; no requirements.txt is "
        "read); a module of your own has to lie in the working folder, and .rubatoignore must not leave it out.",
    ),
    (
        "SpecMismatch",
        "Change the field of the spec that the message names, or mend the program and submit again; "
        "checkpoint.resume_from goes on from a checkpoint.",
    ),
    ("EntrypointError", "Set entrypoint to FILE:FUNCTION as the message has them, and submit again."),
)


def advice_for(reason: str, message: str = "") -> str:
    """What to do about it, in a sentence or two; the message of a failure of the program may name a better one."""
    if reason == Reason.USER_CODE_ERROR:
        for name, advice in _OF_ERRORS:
            if name in message:
                return advice
    try:
        return Reason(reason).advice
    except ValueError:
        return "See the events, and the log around the failing step."
