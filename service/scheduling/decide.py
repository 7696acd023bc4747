"""Who starts, who grows, who gives back: a pure decision, each part with its sentence.

One round: what no longer holds is trimmed; the queue is served in its order, every job with all of its minimum or
nothing; what is left goes to wishes, then to spare workers, then to jobs that are autoscaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from service.scheduling import sentences
from service.scheduling.capacity import Shape
from service.scheduling.reclaim import has_overtaken, take_back_for_wish, trim_to_quotas
from service.scheduling.room import Room, Seat, furnish, in_order
from service.scheduling.serving import Started, Verdict, Waits, serve_queue
from service.scheduling.sharing import gain, may_grow_at, next_extra, next_useful, paying_count
from service.scheduling.view import Decision, Fail, Keep, Placed, Preempt, Resize, Start, View, Wait, Waiting


def decide(view: View, now: datetime) -> list[Decision]:
    """One decision for every queued job, in the order of the queue, and one for every job that holds slots."""
    rooms = furnish(view)
    for room in rooms.values():
        _trim(room)
    for room in rooms.values():
        trim_to_quotas(room, lambda project: sentences.over_quota(project, view.max_slots[project]))
    verdicts = serve_queue(view, rooms, now)
    for room in rooms.values():
        if room.reserved_for is None:
            _share(room, now)
    return [*_queue_decisions(verdicts), *_placed_decisions(view, rooms, now)]


# --- what no longer holds ---------------------------------------------------------------------------------------------


def _trim(room: Room) -> None:
    """Follow wishes, bounds and measurements downwards, and withdraw grants for slots that are gone."""
    for seat in room.seats:
        job = seat.job
        if not isinstance(job, Placed) or job.is_leaving:
            continue
        _withdraw_lost(room, seat, job)
        target, because = _held_target(job, seat.workers)
        if target < seat.workers:
            room.shrink(seat, workers=seat.workers - target)
            seat.because = because
        if seat.standby > job.standby:
            room.shrink(seat, standby=seat.standby - job.standby)
            seat.because = seat.because or because


def _held_target(job: Placed, workers: int) -> tuple[int, str]:
    """The workers that the job may keep, and why."""
    has_spoken = job.wished_at is not None and job.wished_at >= job.granted_at
    if job.wish < workers and (job.autoscale == "off" or has_spoken):
        return max(job.min_workers, job.wish), sentences.follows_wish(job, workers)
    if job.max_workers < workers:
        return job.max_workers, sentences.bounded(job, workers, job.max_workers)
    paying = paying_count(job)
    return (paying, sentences.does_not_pay(workers, paying)) if paying < workers else (workers, "")


def _withdraw_lost(room: Room, seat: Seat, job: Placed) -> None:
    """A grant that the cluster can no longer serve, and that the job does not use: it gets it again with new slots."""
    lost = min(seat.workers + seat.standby - len(seat.spots), seat.workers + seat.standby - job.held)
    spares = min(seat.standby, max(0, lost))
    workers = min(seat.workers - job.min_workers, max(0, lost) - spares)
    if spares or workers > 0:
        seat.standby -= spares
        seat.workers -= max(0, workers)
        seat.because = sentences.lost_slots(job, seat.workers, room.cluster.shut)


# --- what is left -----------------------------------------------------------------------------------------------------


def _share(room: Room, now: datetime) -> None:
    """Free slots go to wishes by importance, then to spare workers, then to autoscaled jobs by what they bring."""
    seats = [seat for seat in in_order(room.seats) if not seat.is_fixed]
    # What is given back for a wish is not for others, meanwhile.
    awaited = [seat.job.shape for seat in seats if _may_grow(seat, now) and _grant_wish(room, seat)]
    for seat in seats:
        count = min(seat.job.standby - seat.standby, room.fits_more(seat.job))
        if count > 0 and seat.workers >= seat.job.wish and _leaves_room(room, seat, count, awaited):
            room.grow(seat, standby=count)
            seat.because = seat.because or sentences.grows(seat.job, seat.workers, seat.workers, seat.standby)
    while best := max(_extras(room, seats, awaited, now), key=lambda extra: extra[0], default=None):
        _, seat, count = best
        _grow_to(room, seat, count)


def _leaves_room(room: Room, seat: Seat, count: int, awaited: list[Shape]) -> bool:
    """Whether so many slots more can be given away without taking what is on its way to a wish."""
    soon = room.soon.copy()
    for node in room.now.copy().place(seat.job.shape, count):
        soon.take(node, seat.job.shape)
    return all(soon.fits(shape) >= room.soon.fits(shape) for shape in awaited)


def _grant_wish(room: Room, seat: Seat) -> bool:
    """As much of the wish as is free; whether something is missing that others could give back."""
    missing = seat.job.wish - seat.workers
    if missing <= 0:
        return False
    own = min(missing, seat.standby)
    seat.standby -= own  # a spare becomes one of those that train: it has its slot
    seat.workers += own
    count = min(missing - own, room.fits_more(seat.job))
    _grow_to(room, seat, seat.workers + count)
    if own and not count:
        seat.because = sentences.grows(seat.job, seat.workers - own, seat.workers, seat.standby)
    missing -= own + count
    if not missing:
        return False
    if room.fits_more_soon(seat.job) < missing:
        taking = take_back_for_wish(room, seat, missing)
        taking.apply(room, lambda giver: sentences.gives_to(giver, seat.job, missing))
    return True


def _grow_to(room: Room, seat: Seat, count: int) -> None:
    before = seat.job.granted if isinstance(seat.job, Placed) else seat.workers
    if count > seat.workers:
        room.grow(seat, workers=count - seat.workers)
        seat.because = sentences.grows(seat.job, before, count, seat.standby)


def _extras(
    room: Room, seats: list[Seat], awaited: list[Shape], now: datetime
) -> Iterator[tuple[tuple[float, ...], Seat, int]]:
    """What each autoscaled job would gain by its next useful count, where that fits; ties: importance, then age."""
    for seat in seats:
        count = next_extra(seat.job, seat.workers) if seat.workers >= seat.job.wish else None
        if count is None or not _may_grow(seat, now):
            continue
        more = count - seat.workers
        if room.fits_more(seat.job) < more or not _leaves_room(room, seat, more, awaited):
            continue
        yield (gain(seat.job, seat.workers, count), seat.job.priority, -seat.since.timestamp()), seat, count


def _may_grow(seat: Seat, now: datetime) -> bool:
    """Not in the round in which it gives something back, and not too soon after its last change."""
    if isinstance(seat.job, Placed) and seat.workers < seat.job.granted:
        return False
    moment = may_grow_at(seat.job) if isinstance(seat.job, Placed) else None
    return moment is None or now >= moment


# --- the decisions ----------------------------------------------------------------------------------------------------


def _queue_decisions(verdicts: list[tuple[Waiting, Verdict]]) -> Iterator[Decision]:
    position = 0
    for job, verdict in verdicts:
        match verdict:
            case Started(room=room, seat=seat, free=free, overtaken=None):
                because = sentences.starts(job, seat.workers, seat.standby, free)
                yield Start(job.job_id, room.cluster.cluster_id, seat.workers, seat.standby, because)
            case Started(room=room, seat=seat, free=free, overtaken=Waiting() as first):
                because = sentences.goes_first(job, seat.workers, free, first)
                cluster_id = room.cluster.cluster_id
                yield Start(job.job_id, cluster_id, seat.workers, seat.standby, because, is_backfilled=True)
            case Fail():
                yield verdict
            case Waits(because=because, is_held_by_quota=is_held):
                position += 1
                yield Wait(job.job_id, position if job.has_place else None, because, is_held)


def _placed_decisions(view: View, rooms: dict[str, Room], now: datetime) -> Iterator[Decision]:
    for job in view.placed:
        if job.cluster_id not in rooms:
            yield Keep(job.job_id, sentences.silent_cluster(job))
    for room in rooms.values():
        for seat in room.seats:
            if isinstance(seat.job, Placed):
                yield _placed_decision(room, seat, seat.job, now)


def _placed_decision(room: Room, seat: Seat, job: Placed, now: datetime) -> Decision:
    if seat.paused_for is not None:
        told_why = sentences.makes_way_for if has_overtaken(seat, seat.paused_for) else sentences.paused_for
        is_foreign = seat.paused_for.project != job.project
        because = told_why(job, seat.paused_for)
        return Preempt(job.job_id, seat.paused_for.job_id, because, is_for_foreign=is_foreign)
    if job.is_leaving:
        return Keep(job.job_id, sentences.leaving())
    if seat.has_changed:
        because = seat.because or sentences.bounded(job, job.granted, seat.workers)
        return Resize(job.job_id, seat.workers, seat.standby, because)
    because = _why_not_more(room, seat, job, now)
    if room.reserved_for is not None and has_overtaken(seat, room.reserved_for):
        because = "; ".join(part for part in (because, sentences.is_paused_for(job, room.reserved_for)) if part)
    if seat.workers < job.wish:
        return Keep(job.job_id, sentences.wants_more(job, seat.workers, because))
    tail = f"; {because}" if because else ""
    told = sentences.has_its_wish if seat.workers == job.wish else sentences.has_extras
    return Keep(job.job_id, told(job, seat.workers, tail))


def _why_not_more(room: Room, seat: Seat, job: Placed, now: datetime) -> str:
    """What stands against another worker; empty for a job that wants none."""
    free = room.now.fits(job.shape)
    count = None
    if seat.workers >= job.wish:
        if job.autoscale == "off":
            return ""
        if seat.workers >= job.max_workers:
            return sentences.at_maximum(job)
        count = next_useful(job, seat.workers)
        if count is None:
            return sentences.no_useful_count(job)
        if job.autoscale == "goodput" and next_extra(job, seat.workers) is None:
            return sentences.is_measuring()
    moment = may_grow_at(job)
    if room.reserved_for is not None:
        return sentences.kept_for(job, room.reserved_for, free)
    if moment is not None and now < moment:
        return sentences.not_before(moment)
    if room.fits_more(job) < min(free, 1 if count is None else count - seat.workers):
        queued = room.quotas.reserved_for.get(job.project)
        if queued is not None and room.quotas.left(job.project):
            return sentences.quota_kept_for(queued)
        limit = room.quotas.limits[job.project]
        return sentences.uses(job.project, room.quotas.used(job.project), limit)
    if count is not None and free:
        return sentences.next_count(count, free)
    return sentences.none_free(job, free, room.others(job), room.cluster.shut)
