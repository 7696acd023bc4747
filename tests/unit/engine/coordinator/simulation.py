"""A simulated job whose controllers take over from each other, one step at a time: see `controllers`."""

from __future__ import annotations

from jobs.supervisor import Allegiance, left_behind
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.controllers import Act, Controller, Fate, Reply
from tests.unit.engine.coordinator.world import STAGE_S as STAGE_S
from tests.unit.engine.coordinator.world import World


class Cluster(World):
    """The world around the controllers of a job."""

    @property
    def newest(self) -> Controller:
        """The one that the service has granted an attempt last."""
        return max((self.leader, *self.others), key=lambda one: one.attempt)

    @property
    def superseded(self) -> list[Controller]:
        """Older ones that are not gone, the newest first."""
        older = [one for one in (self.leader, *self.others) if one is not self.newest and one.fate is not Fate.GONE]
        return sorted(older, key=lambda one: -one.attempt)

    def take_over(self, fate: Fate, *, deaf_s: float = 0.0, is_cut_off: bool = False, pace: float = 1.0) -> Controller:
        """An attempt is granted to a new controller.

        Args:
            fate: of the one before.
            deaf_s: it does not hear of it before, nor does it after it was stopped.
            is_cut_off: the service does not answer it any more.
            pace: how likely it is, at each moment, that the new one can take its next step.
        """
        before = self.newest
        before.is_cut_off = is_cut_off
        if fate is Fate.GONE:
            self.end(before)
        else:
            before.fate, before.hears_at = fate, self.now + deaf_s
        self.granted += 1
        successor = self._make_controller()
        successor.pace = pace
        self.others.append(successor)
        return successor

    def replace_controller(self) -> None:
        """The controller dies, and nothing but the takeover happens until another one leads."""
        successor = self.take_over(Fate.GONE)
        while not successor.leads:
            steps: list[Act] = []
            self._add_steps(successor, steps)
            if steps:
                steps[0]()
            for worker in self.workers.values():
                if worker.on_snapshot and self.random.random() < 0.5:
                    answer_for(worker)
                while worker.on_snapshot:
                    self._obey(worker)

    def wake(self, one: Controller, deaf_s: float) -> None:
        """A controller that was stopped goes on: it may know of nothing yet."""
        one.fate, one.hears_at = Fate.LIVES, self.now + deaf_s

    def end(self, one: Controller, *, lets_go: bool = False) -> None:
        """It dies, or lets go: then its archive does what it was asked for before."""
        while lets_go and one.archive.lane.tasks:
            one.archive.lane.tasks.popleft()()
        one.fate = Fate.GONE
        for worker in self.workers.values():
            if worker.is_stray and worker.attempt == one.attempt:
                self._end_stray(worker)  # its supervisor hears no controller any more
        self.others = [other for other in self.others if other is not one]

    def _add_actions_of(self, one: Controller, actions: list[Act]) -> None:
        if not one.leads:
            if self.random.random() < one.pace:
                self._add_steps(one, actions)
            return
        super()._add_actions_of(one, actions)
        if one.attempt == self.granted:
            return
        seen = [self.workers[view.incarnation] for view in one.coordinator.job.roster]
        is_refused = any(not self.passes_on(worker, one) for worker in seen)
        if self.now >= one.hears_at and (is_refused or not one.is_cut_off):
            actions.append(lambda: self.end(one, lets_go=True))
        for worker in seen:
            if worker.gone:  # which it was not told by the worker itself
                lost = wire.Exited(worker.incarnation, None, None, cause="its supervisor was lost")
                actions.append(lambda lost=lost: self.handle(lost, one))

    # --- taking over --------------------------------------------------------------------------------------------------

    def _add_steps(self, one: Controller, actions: list[Act]) -> None:
        if one.calls is None:
            actions.append(lambda: self._list_workers(one))
            return
        waited_for = [worker for name in one.unanswered() if (worker := self.workers[name]).placed]
        for worker in waited_for:
            if worker.incarnation not in one.is_called:
                actions.append(lambda w=worker: self.attach(w, one))
            elif worker.on_snapshot and worker.alive:
                actions.append(lambda w=worker: answer_for(w))
        if one.is_refused or all(worker.incarnation in one.is_called and not worker.alive for worker in waited_for):
            actions.append(lambda: self.lead(one))

    def _list_workers(self, one: Controller) -> None:
        one.calls = {worker.incarnation: None for worker in self.workers.values() if not worker.gone}

    def attach(self, worker: Worker, to: Controller) -> None:
        """The supervisor follows a new controller, or refuses it."""
        assert to.calls is not None
        if worker.gone:
            to.calls[worker.incarnation] = Reply(None, (), None, None, Allegiance(worker.attempt, worker.led_by))
        else:
            to.attach(worker, self.now)

    def lead(self, one: Controller) -> None:
        """Take over those that answered; the others are ended, however they are."""
        one.leads = True
        if one.is_refused:
            self.end(one)
            return
        assert one.calls is not None
        strays = left_behind({name: reply.allegiance for name, reply in one.calls.items() if reply is not None})
        snapshots, placed, backlog = [], [], []
        for incarnation, reply in one.calls.items():
            backlog += reply.backlog if reply is not None else ()
            if reply is None or reply.snapshot is None or incarnation in strays:
                self.end_unanswered(self.workers[incarnation], one)
                continue
            snapshots.append(reply.snapshot)
            placed += [reply.spawned] if reply.spawned is not None else []
            if self.workers[incarnation].attempt == one.attempt:
                self.workers[incarnation].led_by = one.attempt
                reply.listen(self.workers[incarnation])
        if one.attempt > self.leader.attempt:
            self.others = [other for other in (*self.others, self.leader) if other is not one]
            self.others = [other for other in self.others if other.fate is not Fate.GONE]
            self.leader = one
        if snapshots:
            self.carry_out(one.coordinator.adopt(snapshots, placed, self.now), one)
            for view in one.coordinator.job.roster if one is self.newest else ():
                self.workers[view.incarnation].is_stray = False  # however it came about
        for message in backlog:
            self.handle(message, one)
        if one.coordinator.job.wish != self.wish:
            self.handle(self.wish, one)
        if one.fate is Fate.LIVES and self.outcome is None:
            self.carry_out(one.coordinator.tick(self.now), one)

    def end_unanswered(self, worker: Worker, by: Controller) -> None:
        """It did not answer in time: whether its supervisor follows or not, Ray ends that."""
        if worker.attempt > by.attempt:
            self.die(worker)  # this one is long superseded, and its successor hears of it
        else:
            self._end_stray(worker)

    def _end_stray(self, worker: Worker) -> None:
        self.die(worker)
        worker.is_stray = worker.gone = True
        worker.outbox.clear()


def answer_for(worker: Worker) -> None:
    """The process is silent, and its supervisor answers whoever waits for it."""
    waiting, worker.on_snapshot = worker.on_snapshot, []
    for answer in waiting:
        answer(worker.shadow.snapshot())
