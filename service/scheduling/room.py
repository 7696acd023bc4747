"""A cluster while a round is decided: who holds which slots, what is free now, and what is free soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from service.scheduling.capacity import ClusterView, Free
from service.scheduling.quota import Quotas
from service.scheduling.view import JobView, Placed, View, Waiting


@dataclass(eq=False)
class Seat:
    """A job's slots."""

    job: Placed | Waiting
    workers: int
    standby: int
    since: datetime
    spots: list[str] = field(default_factory=list)
    """The node of each slot, by rank: the last ones are given back first."""
    because: str = ""
    """Why its count changes in this round; empty: it does not."""
    paused_for: Waiting | None = None

    @property
    def is_fixed(self) -> bool:
        """It gets nothing, and nothing can be had of it but what it gives back anyway."""
        return (isinstance(self.job, Placed) and self.job.is_leaving) or self.paused_for is not None

    @property
    def has_changed(self) -> bool:
        """Its grant is another than before the round."""
        job = self.job
        return isinstance(job, Waiting) or (self.workers, self.standby) != (job.granted, job.granted_standby)


@dataclass(eq=False)
class Room:
    """A cluster."""

    cluster: ClusterView
    now: Free
    """What can be granted in this round."""
    soon: Free
    """What is free when all that is being given back has been: never granted, only counted on."""
    quotas: Quotas
    """The same ones in all rooms."""
    seats: list[Seat] = field(default_factory=list)
    reserved_for: Waiting | None = None
    """The first of the queue that fits here but not now: others get free slots only as long as it cannot start."""

    def fits(self, job: JobView) -> int:
        """Workers of a job that can be granted now: slots are free, and its project's quota has room."""
        return min(self.now.fits(job.shape), self.quotas.left(job.project))

    def fits_soon(self, job: JobView) -> int:
        """The same when all that is on its way has come back."""
        return min(self.soon.fits(job.shape), self.quotas.left_soon(job.project))

    def fits_more(self, job: JobView) -> int:
        """Workers that a running job may get besides: a queued one of its project keeps its part of the quota."""
        return min(self.now.fits(job.shape), self.quotas.left_beside(job.project))

    def fits_more_soon(self, job: JobView) -> int:
        """The same when all that is on its way has come back."""
        return min(self.soon.fits(job.shape), self.quotas.left_beside_soon(job.project))

    def seat(self, job: Waiting, workers: int, now: datetime) -> Seat:
        """Give a queued job its first slots."""
        seat = Seat(job, 0, 0, now)
        self.seats.append(seat)
        self.grow(seat, workers=workers)
        return seat

    def grow(self, seat: Seat, *, workers: int = 0, standby: int = 0) -> None:
        """Grant free slots."""
        nodes = self.now.place(seat.job.shape, workers + standby)
        assert len(nodes) == workers + standby, "only free slots are granted"
        for node in nodes:
            self.soon.take(node, seat.job.shape)
        self.quotas.take(seat.job.project, len(nodes))
        seat.spots += nodes
        seat.workers += workers
        seat.standby += standby

    def shrink(self, seat: Seat, *, workers: int = 0, standby: int = 0) -> None:
        """Take slots back: they are free once their workers have left."""
        seat.workers -= workers
        seat.standby -= standby
        self.release(seat, workers + standby)

    def release(self, seat: Seat, count: int) -> None:
        """Count on the last slots of a seat."""
        for _ in range(min(count, len(seat.spots))):
            self.soon.take(seat.spots.pop(), seat.job.shape, -1)
            self.quotas.give_back(seat.job.project, 1)

    def others(self, job: JobView) -> list[JobView]:
        """The other jobs that hold slots here."""
        return [seat.job for seat in self.seats if seat.job.job_id != job.job_id and seat.spots]


def furnish(view: View) -> dict[str, Room]:
    """The clusters with those who hold slots there, as they are before anything is decided."""
    rooms = {}
    quotas = Quotas.of(view.max_slots, view.placed)
    for cluster in view.clusters:
        free = Free.of(cluster)
        rooms[cluster.cluster_id] = Room(cluster, free, free, quotas)
    for job in sorted(view.placed, key=lambda job: (job.placed_at, job.job_id)):
        if job.cluster_id in rooms:
            rooms[job.cluster_id].seats.append(Seat(job, job.granted, job.granted_standby, job.placed_at))
    for room in rooms.values():
        _fill(room)
        room.soon = room.now.copy()
        for seat in room.seats:
            # What leaves: all of a job that pauses or stops, and workers above the grant.
            surplus = len(seat.spots) - (0 if seat.is_fixed else seat.workers + seat.standby)
            room.release(seat, max(0, surplus))
    return rooms


def _fill(room: Room) -> None:
    """Take what the jobs hold: first where it is known to be, then the rest."""
    for seat in room.seats:
        known = _placed(seat).nodes[: _placed(seat).occupied]
        for node in known:
            room.now.take(node, seat.job.shape)
        seat.spots += known
    for seat in room.seats:
        missing = _placed(seat).occupied - len(seat.spots)
        seat.spots += room.now.place(seat.job.shape, missing)


def _placed(seat: Seat) -> Placed:
    assert isinstance(seat.job, Placed)
    return seat.job


def in_order(seats: Sequence[Seat]) -> list[Seat]:
    """Who is served first: the more important, then who came first."""
    return sorted(seats, key=lambda seat: (-seat.job.priority, seat.since, seat.job.job_id))
