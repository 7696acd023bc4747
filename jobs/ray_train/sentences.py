"""What people are told of a Ray Train job."""

from __future__ import annotations

from rubato.wire.units import format_pause

STARTS_DRIVER = "starting Ray Train's driver"
WAITS_FOR_CHECKPOINT = "waiting for the program's next checkpoint before the restart"


def waits_for_room(workers: int) -> str:
    """A group that has not got its place yet."""
    return f"waiting for room for {workers} Ray Train worker{'s' if workers != 1 else ''}"


def formed(generation: int, cause: str, workers: int, step: int, paused_s: float | None, redone: int) -> str:
    """A group that has reported its first step."""
    parts = [
        f"generation {generation} formed ({cause.replace('_', ' ')})",
        "1 worker" if workers == 1 else f"{workers} workers",
        f"step {step}",
    ]
    if paused_s is not None:
        parts.append(f"paused {format_pause(paused_s)}")
    if redone:
        again = f"step {step}" if redone == 1 else f"steps {step} to {step + redone - 1}"
        parts.append(f"{again} computed again")
    return ", ".join(parts)


def refused_action(kind: str) -> str:
    """What to do instead of an action on a single worker."""
    if kind == "drain":
        return (
            "Ray Train's workers do not leave one by one: scale the job, or drain the node, from which the whole group "
            "moves"
        )
    if kind == "stack":
        return "the stacks of Ray Train's workers are not collected: run `py-spy dump --pid PID` on the worker's node"
    return "Ray Train's workers are not ended one by one: cancel or pause the job"
