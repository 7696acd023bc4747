"""Taking slots back: spare workers, workers beyond the wish, workers beyond the minimum; the last resort is a pause.

Nothing is taken for a start unless all that it needs comes together by it. Nobody is killed: a job that gives workers
back trains on with the others, and one that is paused saves a checkpoint first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from service.scheduling.room import Room, Seat, in_order
from service.scheduling.sharing import gain, lower_useful
from service.scheduling.view import JobView, Placed, Waiting, rank

MIN_RUN = timedelta(minutes=2)
"""So long a job that got slots is not paused: it started, loaded its checkpoint and got some way."""

Floor = Callable[[Seat], int]


@dataclass(frozen=True)
class Cut:
    """What one job gives back."""

    seat: Seat
    workers: int
    standby: int


@dataclass(frozen=True)
class Taking:
    """What is taken, and from whom."""

    cuts: tuple[Cut, ...]
    paused: tuple[Seat, ...] = ()

    def apply(self, room: Room, because: Callable[[JobView], str]) -> None:
        """Carry the cuts out on the plan of the round; pauses are for the caller, who knows for whom.

        Args:
            room: where they are made.
            because: the sentence for a job that gives.
        """
        for cut in self.cuts:
            room.shrink(cut.seat, workers=cut.workers, standby=cut.standby)
            cut.seat.because = because(cut.seat.job)


def take_back_for_start(room: Room, job: Waiting, now: datetime) -> Taking | None:
    """What to take so that a queued job gets its minimum; None where that cannot be had. Shrinks come before pauses."""
    standing = rank(job, now)

    def floor(seat: Seat) -> int:
        """An elastic job gives down to its minimum; one that is more important only what it never asked for."""
        is_elastic = seat.job.autoscale != "off" and seat.job.priority <= standing
        return seat.job.min_workers if is_elastic else seat.job.wish

    def has_quota(trial: Room) -> bool:
        return trial.quotas.left_soon(job.project) >= job.min_workers

    def has_room(trial: Room) -> bool:
        return trial.fits_soon(job) >= job.min_workers

    def cuts_with(paused: Sequence[Seat]) -> tuple[Cut, ...] | None:
        givers = [seat for seat in room.seats if seat not in paused]
        # Where the quota is what is missing, only jobs of the same project can help.
        own = [seat for seat in givers if seat.job.project == job.project]
        return _cut(room, floor, ((own, has_quota), (givers, has_room)), paused)

    victims = [seat for seat in room.seats if _may_pause(seat, job, now)]
    victims.sort(
        key=lambda seat: (not has_overtaken(seat, job), seat.job.priority, -seat.since.timestamp(), seat.job.job_id)
    )
    if cuts_with(victims) is None:
        return None
    # Room only grows with the number of those who pause: look for the smallest one by halves.
    count = bisect_left(range(len(victims)), True, key=lambda some: cuts_with(victims[:some]) is not None)
    paused = victims[:count]
    for seat in victims[: count - 1]:
        spared = [one for one in paused if one is not seat]
        paused = paused if cuts_with(spared) is None else spared
    return Taking(cuts_with(paused) or (), tuple(paused))


def take_back_for_wish(room: Room, wanting: Seat, count: int) -> Taking:
    """What others hold without having asked for it, as far as it helps a job to `count` more of its wished workers."""
    job = wanting.job
    givers = [seat for seat in room.seats if seat is not wanting]
    own = [seat for seat in givers if seat.job.project == job.project]
    for fewer in range(count, room.fits_more_soon(job), -1):

        def has_quota(trial: Room, wanted: int = fewer) -> bool:
            return trial.quotas.left_beside_soon(job.project) >= wanted

        def has_room(trial: Room, wanted: int = fewer) -> bool:
            return trial.fits_more_soon(job) >= wanted

        cuts = _cut(room, _wish, ((own, has_quota), (givers, has_room)))
        if cuts is not None:
            return Taking(cuts)
    return Taking(())


def trim_to_quotas(room: Room, because: Callable[[str], str]) -> None:
    """Where a quota was lowered, elastic jobs of the project give back, down to their minimum; nobody is paused."""
    for project in room.quotas.over():
        own = [seat for seat in room.seats if seat.job.project == project and not seat.is_fixed]
        shrinks = _shrinks(room, own, lambda seat: seat.job.min_workers)
        while room.quotas.soon[project] < 0 and (seat := next(shrinks, None)) is not None:
            seat.because = because(project)


def _wish(seat: Seat) -> int:
    return seat.job.wish


def _may_pause(seat: Seat, job: Waiting, now: datetime) -> bool:
    if not isinstance(seat.job, Placed) or seat.is_fixed:
        return False
    is_less = seat.job.is_preemptible and seat.job.priority < job.priority
    return has_overtaken(seat, job) or (is_less and now - seat.since >= MIN_RUN)


def has_overtaken(seat: Seat, job: Waiting) -> bool:
    """It was let in before the queued job, on the condition that it makes way: whatever it is, and however soon."""
    placed = seat.job
    if not isinstance(placed, Placed) or not placed.is_backfilled or placed.ranked_at is None:
        return False
    is_behind = (placed.ranked_at, placed.job_id) > (job.ranked_at, job.job_id)
    return is_behind and job.queued_at <= placed.placed_at


Stage = tuple[Sequence[Seat], Callable[[Room], bool]]
"""Who gives, and until when."""


def _cut(room: Room, floor: Floor, stages: Sequence[Stage], given_up: Sequence[Seat] = ()) -> tuple[Cut, ...] | None:
    """The first cuts that are enough, stage by stage, besides what is given up as a whole; None: all are not."""
    copies = {seat: replace(seat, spots=list(seat.spots)) for seat in room.seats}
    trial = replace(room, soon=room.soon.copy(), quotas=room.quotas.copy(), seats=list(copies.values()))
    for seat in given_up:
        trial.release(copies[seat], len(seat.spots))
    for givers, is_enough in stages:
        shrinks = _shrinks(trial, [copies[seat] for seat in givers if not seat.is_fixed], floor)
        while not is_enough(trial):
            if next(shrinks, None) is None:
                return None
    pairs = [(seat, seat.workers - copy.workers, seat.standby - copy.standby) for seat, copy in copies.items()]
    return tuple(Cut(seat, workers, standby) for seat, workers, standby in pairs if workers or standby)


def _shrinks(room: Room, seats: Sequence[Seat], floor: Floor) -> Iterator[Seat]:
    """Shrink a little at a time, the least painful first: spares, what nobody asked for, then down to the floor."""
    for seat in reversed(in_order(seats)):
        while seat.standby:
            room.shrink(seat, standby=1)
            yield seat
    for lowest in (lambda seat: max(seat.job.wish, floor(seat)), floor):
        while givers := [seat for seat in seats if seat.job.autoscale != "off" and seat.workers > lowest(seat)]:
            seat = min(givers, key=lambda one: _loss(one, lowest(one)))
            room.shrink(seat, workers=seat.workers - lower_useful(seat.job, seat.workers, lowest(seat)))
            yield seat


def _loss(seat: Seat, lowest: int) -> tuple[float, int, float]:
    """What the next shrink costs: throughput for each slot, then importance, then age."""
    fewer = lower_useful(seat.job, seat.workers, lowest)
    return gain(seat.job, fewer, seat.workers), seat.job.priority, -seat.since.timestamp()
