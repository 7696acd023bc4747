"""The queue in its order: who starts, who waits and for what, who may go first meanwhile. Pure.

The first job that does not fit reserves the clusters that it could ever run on, so no stream of small jobs starves a
large one. Others behind it may use the slots that it cannot start with, on the condition that they make way
(*backfilling*). Of its project's quota it reserves what it needs; one that only the quota stops reserves nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from rubato.wire.reasons import Reason
from service.scheduling import sentences
from service.scheduling.capacity import largest_fit
from service.scheduling.reclaim import take_back_for_start
from service.scheduling.room import Room, Seat
from service.scheduling.view import Fail, Placed, View, Waiting


@dataclass(frozen=True)
class Started:
    """A job that got its minimum; what it gets beyond that is known at the end of the round."""

    room: Room
    seat: Seat
    free: int
    overtaken: Waiting | None = None
    """Whom it overtakes."""


@dataclass(frozen=True)
class Waits:
    """A job that does not start."""

    because: str
    is_held_by_quota: bool = False


Verdict = Started | Waits | Fail


def serve_queue(view: View, rooms: dict[str, Room], now: datetime) -> list[tuple[Waiting, Verdict]]:
    """A verdict for each queued job, in their order; the rooms are as these leave them."""
    in_line = sorted(view.waiting, key=lambda job: (job.ranked_at, job.job_id))
    return [(job, _serve(view, rooms, job, now)) for job in in_line]


def _serve(view: View, rooms: dict[str, Room], job: Waiting, now: datetime) -> Verdict:
    largest = max((largest_fit(cluster, job.shape) for cluster in view.clusters), default=0)
    limit = view.max_slots.get(job.project)
    possible = [room for room in rooms.values() if largest_fit(room.cluster, job.shape) >= job.min_workers]
    open_rooms = [room for room in possible if room.reserved_for is None]
    is_over = view.is_settled and job.queue_timeout is not None and now - job.queued_at >= job.queue_timeout
    if not possible:
        shut = sorted({name for cluster in view.clusters for name in cluster.shut})
        because = sentences.never_fits(job, largest, shut) if view.clusters else sentences.no_cluster()
        return _over(job, because, is_hopeless=bool(view.clusters)) if is_over else Waits(because)
    if limit is not None and limit < job.min_workers:
        because = sentences.beyond_quota(job, limit)
        return _over(job, because, is_hopeless=True) if is_over else Waits(because, is_held_by_quota=True)
    quotas = possible[0].quotas
    before = quotas.reserved_for.get(job.project)
    if before is not None and quotas.left_beside(job.project) < job.min_workers:
        because = sentences.behind_in_project(job, before)
        return _over(job, because) if is_over else Waits(because, is_held_by_quota=True)
    if open_rooms:
        roomiest = max(open_rooms, key=lambda room: room.now.fits(job.shape))
        if roomiest.fits(job) >= job.min_workers:
            free = roomiest.now.fits(job.shape)
            return Started(roomiest, roomiest.seat(job, job.min_workers, now), free)
        if is_over:
            return _over(job, _needs(roomiest, job))
        return _wait_first(open_rooms, roomiest, job, now)
    first = next(room.reserved_for for room in possible if room.reserved_for is not None)
    lent = next((room for room in possible if _may_go_first(room, job)), None)
    if lent is not None:
        free = lent.now.fits(job.shape)
        return Started(lent, lent.seat(job, job.min_workers, now), free, overtaken=lent.reserved_for)
    because = _why_behind(possible, first, job)
    return _over(job, because) if is_over else Waits(because)


def _over(job: Waiting, because: str, *, is_hopeless: bool = False) -> Fail:
    because = sentences.waited_too_long(job, because)
    return Fail(job.job_id, Reason.UNSCHEDULABLE if is_hopeless else Reason.QUEUE_TIMEOUT, because)


def _wait_first(rooms: list[Room], roomiest: Room, job: Waiting, now: datetime) -> Waits:
    """The first that does not fit: have slots given back for it, and keep for it what it needs."""
    because = _make_way(job, rooms, now) or _needs(roomiest, job)
    quotas = roomiest.quotas
    if job.project in quotas.limits:
        quotas.reserved_for.setdefault(job.project, job)
    if quotas.left_soon(job.project) < job.min_workers:
        # Slots that it could not take anyway are for others.
        return Waits(because, is_held_by_quota=True)
    for room in rooms:
        room.reserved_for = job
    return Waits(because)


def _make_way(job: Waiting, rooms: list[Room], now: datetime) -> str:
    """Have slots given back for the first of the queue; the sentence, empty where that would not help."""
    for room in rooms:
        taking = take_back_for_start(room, job, now)
        if taking is None:
            continue
        taking.apply(room, lambda giver: sentences.gives_to(giver, job, job.min_workers))
        for seat in taking.paused:
            room.release(seat, len(seat.spots))
            seat.paused_for = job
        paused = [seat.job for seat in room.seats if seat.paused_for is job]
        shrinking = [seat.job for seat in room.seats if _gives_back(seat) and seat.paused_for is None]
        if paused or shrinking:
            return sentences.gets(job, _short(room, job), paused, shrinking)
    return ""


def _gives_back(seat: Seat) -> bool:
    """Slots of the job are on their way to be free."""
    job = seat.job
    if not isinstance(job, Placed):
        return False
    return job.is_leaving or seat.workers + seat.standby < job.occupied


def _needs(room: Room, job: Waiting) -> str:
    is_short_of_slots = room.now.fits(job.shape) < job.min_workers
    holders, shut = (room.others(job), room.cluster.shut) if is_short_of_slots else ([], ())
    return sentences.needs(job, _short(room, job), holders, shut)


def _short(room: Room, job: Waiting) -> str:
    """What there is too little of."""
    quotas = room.quotas
    if quotas.left(job.project) >= job.min_workers:
        return sentences.free(room.now.fits(job.shape))
    return sentences.uses(job.project, quotas.used(job.project), quotas.limits[job.project])


def _may_go_first(room: Room, job: Waiting) -> bool:
    """Whether a job may use the slots that the first of the queue waits for.

    It must be one that can be paused again, and leave alone slots with which the first is about to start.
    """
    first = room.reserved_for
    if first is None or not job.is_preemptible or room.fits(job) < job.min_workers:
        return False
    if room.fits_soon(first) < first.min_workers:
        return True
    soon = room.soon.copy()
    for node in room.now.copy().place(job.shape, job.min_workers):
        soon.take(node, job.shape)
    return soon.fits(first.shape) >= first.min_workers


def _why_behind(possible: list[Room], first: Waiting, job: Waiting) -> str:
    if not any(room.fits(job) >= job.min_workers for room in possible):
        return sentences.behind(job, first)
    return sentences.too_late(job, first) if job.is_preemptible else sentences.not_to_be_paused(job, first)
