"""Every sentence of the scheduler, in one place: what a job waits for, why it has so many workers.

A sentence names numbers, jobs and moments, never a time that passes: it is stored, and changes only when the facts do.
It goes to everybody in the project of its job, so jobs of other projects are counted in it, never named.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rubato.wire.units import plural, to_size
from service.scheduling.capacity import Shape
from service.scheduling.view import JobView, Placed, Waiting

SHOWN = 3
"""So many names are told; of the others how many they are."""
UNSEEN = "waits for the scheduler to look at it, in the order of the queue"
"""Of a job that no round has looked at yet, or not any more."""


def passed_over(fault: Exception) -> str:
    """Nothing can be decided about it."""
    return (
        f"is passed over: the scheduler cannot decide about it ({type(fault).__name__}; the service's log says more); "
        "cancel it, and submit it with other resources or bounds"
    )


# --- a queued job -----------------------------------------------------------------------------------------------------


def starts(job: Waiting, workers: int, standby: int, free: int) -> str:
    """It gets its slots."""
    spares = f" and {standby} spare" if standby else ""
    if workers < job.wish:
        return f"starts with {workers} of {job.wish} workers, free {free}; the rest join when slots are free"
    return f"starts with {plural(workers, 'worker')}{spares}, free {free}"


def no_cluster() -> str:
    """Nowhere to go."""
    return "no cluster is online; `rubato up` starts one on this machine"


def never_fits(job: Waiting, largest: int, shut: Sequence[str] = ()) -> str:
    """Not even the empty cluster would do."""
    lower = "lower workers.min" if largest else "change resources_per_worker"
    advice = f"{lower} or add nodes"
    if shut:
        advice = "`rubato node uncordon` opens a node again" + (f", or {lower}" if largest else "")
    where = "the nodes that take workers have" if shut else "the whole cluster has"
    return (
        f"needs {plural(job.min_workers, 'slot')} of {_worker(job.shape)}, and {where} {largest}{_shut(shut)}; {advice}"
    )


def behind(job: JobView, first: Waiting) -> str:
    """Another one is first."""
    return f"waits behind {_name(first, job)}, which needs {plural(first.min_workers, 'slot')}"


def free(slots: int) -> str:
    """What there is too little of: slots of the cluster."""
    return f"free {slots}"


def uses(project: str, used: int, limit: int) -> str:
    """What there is too little of: the project's quota."""
    return f"project {project} uses {used} of its {plural(limit, 'slot')}"


def needs(job: Waiting, short: str, holders: Sequence[JobView], shut: Sequence[str] = ()) -> str:
    """It is the first of the queue, and there is too little."""
    return f"needs {plural(job.min_workers, 'slot')}, {short}{_held_by(holders, job)}{_shut(shut)}"


def gets(job: Waiting, short: str, paused: Sequence[JobView], shrinking: Sequence[JobView]) -> str:
    """Slots are on their way to it."""
    parts = [f"{_names(paused, job)} {_is(paused)} being paused"] if paused else []
    parts += [f"{_names(shrinking, job)} {_gives(shrinking)} slots back"] if shrinking else []
    return f"needs {plural(job.min_workers, 'slot')}, {short}; {' and '.join(parts)} for it"


def beyond_quota(job: Waiting, limit: int) -> str:
    """Not even the whole quota would do."""
    return (
        f"needs {plural(job.min_workers, 'slot')}, and project {job.project} may use {limit}; lower workers.min, or "
        "ask an admin for a larger quota"
    )


def behind_in_project(job: Waiting, first: Waiting) -> str:
    """Another one of its project waits for the quota."""
    return (
        f"waits behind {first.name} of the same project, which needs {plural(first.min_workers, 'slot')} of the quota "
        f"of {job.project}"
    )


def goes_first(job: Waiting, workers: int, slots: int, first: Waiting) -> str:
    """It overtakes."""
    return (
        f"starts with {plural(workers, 'worker')} of {job.wish}, free {slots}, before {_name(first, job)}, which "
        f"needs {plural(first.min_workers, 'slot')}; {is_paused_for(job, first)}"
    )


def is_paused_for(job: JobView, first: Waiting) -> str:
    """What whoever goes first has promised."""
    return f"it is paused as soon as {_name(first, job)} can start"


def too_late(job: JobView, first: Waiting) -> str:
    """It could go first, but the first is about to start."""
    return f"waits behind {_name(first, job)}, which gets its {plural(first.min_workers, 'slot')} at any moment"


def not_to_be_paused(job: JobView, first: Waiting) -> str:
    """Free slots would do for it, but nobody could take them back."""
    return (
        f"waits behind {_name(first, job)}, which needs {plural(first.min_workers, 'slot')}; it may not go first, "
        "because scheduling.preemptible is false"
    )


def waited_too_long(job: Waiting, because: str) -> str:
    """`limits.queue_timeout` is over."""
    assert job.queue_timeout is not None
    return f"waited {job.queue_timeout.total_seconds():g} s (limits.queue_timeout): {because}"


# --- a job that holds slots -------------------------------------------------------------------------------------------


def grows(job: JobView, before: int, after: int, standby: int) -> str:
    """It is granted more."""
    if after == before:
        return f"is granted {plural(standby, 'spare worker')}: slots were free"
    if after > job.wish:
        return (
            f"grows from {before} to {after}: slots were free, and {plural(after, 'worker')} shorten a step "
            f"(autoscale: {job.autoscale})"
        )
    wanted = "" if after == job.wish else f" of the {job.wish} it wants"
    return f"grows from {before} to {after}{wanted}: slots were free"


def follows_wish(job: JobView, before: int) -> str:
    """The user wants fewer."""
    return f"shrinks from {before} to {job.wish}: so many are wanted"


def bounded(job: JobView, before: int, after: int) -> str:
    """Its bounds were changed."""
    return f"changes from {before} to {after}: it may have {job.min_workers} to {job.max_workers}"


def gives_to(job: JobView, needing: JobView, count: int) -> str:
    """Its slots are needed."""
    return f"gives workers back: {_name(needing, job)} needs {plural(count, 'slot')}"


def does_not_pay(before: int, after: int) -> str:
    """`goodput`: measured."""
    return f"shrinks from {before} to {after}: the additional workers brought too little (autoscale: goodput)"


def lost_slots(job: JobView, after: int, shut: Sequence[str] = ()) -> str:
    """The cluster became smaller."""
    return f"wants {job.wish}, is granted {after}: the cluster has lost slots{_shut(shut)}"


def paused_for(job: JobView, needing: Waiting) -> str:
    """It is preempted."""
    return (
        f"is paused with a checkpoint for {_name(needing, job)} (priority {needing.priority}), which needs "
        f"{plural(needing.min_workers, 'slot')}; it comes back to the queue by itself"
    )


def makes_way_for(job: JobView, needing: Waiting) -> str:
    """It overtook that job."""
    return (
        f"is paused with a checkpoint for {_name(needing, job)}, which it had overtaken and which can start with its "
        "slots; it comes back to its place in the queue by itself"
    )


def over_quota(project: str, limit: int) -> str:
    """The quota was lowered."""
    return f"gives workers back: project {project} may use {plural(limit, 'slot')} now"


def quota_kept_for(first: Waiting) -> str:
    """A queued job of the project comes first."""
    return f"what is left of the quota of project {first.project} is kept for {first.name}"


def leaving() -> str:
    """It pauses or stops."""
    return "gives its slots back"


def silent_cluster(job: Placed) -> str:
    """Nothing can be decided for it."""
    if job.is_leaving:
        way_out = "ask again with --force"
    else:
        way_out = "`rubato pause --force` and then `rubato resume` move the job"
    silent = f"the cluster {job.cluster_id} does not answer; nothing is changed meanwhile"
    return f"{silent}. Where it is gone for good, {way_out}"


def wants_more(job: JobView, workers: int, because: str) -> str:
    """It has less than its user wants."""
    return f"wants {job.wish}, has {workers}: {because}"


def has_its_wish(job: JobView, workers: int, because: str) -> str:
    """It has what its user wants."""
    return f"has slots for the {plural(workers, 'worker')} it wants{because}"


def has_extras(job: JobView, workers: int, because: str) -> str:
    """It has more than its user asked for."""
    more = f"{workers - job.wish} more from free slots (autoscale: {job.autoscale})"
    return f"wants {job.wish}, has {workers}: {more}{because}"


# --- why not more -----------------------------------------------------------------------------------------------------


def none_free(job: JobView, free: int, holders: Sequence[JobView], shut: Sequence[str] = ()) -> str:
    """The cluster is full, or what is left is too small."""
    return f"{plural(free, 'slot')} free{_held_by(holders, job)}{_shut(shut)}"


def kept_for(job: JobView, first: Waiting, free: int) -> str:
    """A queued job comes first."""
    if free:
        return f"{plural(free, 'slot')} free, kept for {_name(first, job)}, which needs {first.min_workers}"
    return f"0 slots free, and {_name(first, job)}, which needs {first.min_workers}, comes first"


def not_before(moment: datetime) -> str:
    """Its count changed lately."""
    return f"its count changed lately, it may grow again at {moment:%H:%M:%S} UTC"


def at_maximum(job: JobView) -> str:
    """`workers.max`."""
    return f"{job.max_workers} is its maximum"


def no_useful_count(job: JobView) -> str:
    """More workers would have nothing to do."""
    return f"more would not shorten a step of {plural(job.num_microbatches, 'microbatch', 'microbatches')}"


def next_count(count: int, free: int) -> str:
    """The next count that shortens a step needs more than is free."""
    return f"the next useful count is {count}, and {plural(free, 'slot')} {'is' if free == 1 else 'are'} free"


def is_measuring() -> str:
    """`goodput` goes on when it knows more, and stays where more does not pay."""
    return "more come when those that it has are measured to pay"


# --- words ------------------------------------------------------------------------------------------------------------


def held_by_others(workers: int, held: float, slots: float, what: str) -> str:
    """Granted workers have no place."""
    theirs = f"others than Rubato hold {round(held, 2):g} of {round(slots, 2):g}"
    return f"Ray has no place for {plural(workers, 'more worker')} yet: {theirs} {what}s"


def no_open_place(workers: int, shut: Sequence[str]) -> str:
    """Granted workers have no place, and there are nodes that take none."""
    return f"there is no place for {plural(workers, 'more worker')}{_shut(shut)}"


def _worker(shape: Shape) -> str:
    """What one takes."""
    parts = [f"{shape.cpu:g} CPU"] if shape.cpu else []
    parts += [f"{shape.gpu:g} GPU"] if shape.gpu else []
    parts += [f"{to_size(shape.memory)} of memory"] if shape.memory else []
    return f"{_list(parts)} on a node with {shape.accelerator}" if shape.accelerator else _list(parts)


def _held_by(holders: Sequence[JobView], reader: JobView) -> str:
    return f", held by {_names(holders, reader)}" if holders else ""


def _shut(names: Sequence[str]) -> str:
    """Nodes whose slots do not count."""
    return f"; {_list(_few(names))} {'takes' if len(names) == 1 else 'take'} no new workers" if names else ""


def _name(job: JobView, reader: JobView) -> str:
    """A job, as those hear of it who see the reader."""
    return job.name if job.project == reader.project else "a job of another project"


def _names(jobs: Sequence[JobView], reader: JobView) -> str:
    foreign = [job for job in jobs if job.project != reader.project]
    parts = _few(sorted(job.name for job in jobs if job.project == reader.project))
    if foreign:
        parts.append(_name(foreign[0], reader) if len(foreign) == 1 else f"{len(foreign)} jobs of other projects")
    return _list(parts)


def _few(names: Sequence[str]) -> list[str]:
    more = [f"{len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return [*names[:SHOWN], *more]


def _list(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def _is(jobs: Sequence[JobView]) -> str:
    return "is" if len(jobs) == 1 else "are"


def _gives(jobs: Sequence[JobView]) -> str:
    return "gives" if len(jobs) == 1 else "give"
