"""The child's end of the line to its controller: what was ordered, and what is to be said.

A thread reads commands and keeps what they say; the main thread looks at it whenever it is in the engine. Groups are
formed in threads of their own while the main thread trains. What that does is written into the progress word.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rubato.engine.comm import Communicator
from rubato.engine.header import Leaving
from rubato.engine.stacks import describe_stacks
from rubato.errors import GenerationLost, LeaveTraining
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from rubato.wire.progress import ProgressWord

BEAT_EVERY_S = 1.0
ROWS_IN_MESSAGE = 1000
"""A message must stay far below what the supervisor takes in one line, however long rows could not be acknowledged."""
MAX_KEPT_ROWS = 100_000
"""Where the service is away for longer, and the controller is lost too, older ones are lost with it."""

Former = Callable[[wire.GenerationRecord, int, Callable[[], bool]], Communicator | None]
"""Builds the group of a generation for a rank, given a test for "revoked meanwhile"."""


class Control:
    """Orders of the controller, as the training process sees them. All attributes are safe to read at any time."""

    def __init__(
        self,
        start: wire.Start,
        connection: socket.socket | None = None,
        reader: Any = None,
        word: ProgressWord | None = None,
    ) -> None:
        """Without a connection the process is alone: nobody orders anything, and nothing is said.

        Args:
            start: the first order.
            connection: the child's end of the line.
            reader: commands, line by line.
            word: shared with the supervisor.
        """
        self.start = start
        self.attempt = start.attempt
        self.revoked_through = 0
        self.highest = 0
        """Highest generation heard of."""
        self.formed = 0
        """Highest generation whose group this worker has formed, or may leave for. Never withdrawn."""
        self.ready = 0
        """Highest generation this worker may switch to. Withdrawn only by the main thread, between two headers."""
        self.leaving = Leaving.NO
        self.checkpoint_request = 0
        self.saved_step = -1
        """Of the newest checkpoint that is known to be whole."""
        self._lost_step = -1
        self.is_released = False
        self.record: wire.GenerationRecord | None = None
        """What the main thread trains in, for snapshots."""
        self.hello: wire.Hello | None = None
        self.standby: wire.Standby | None = None
        self.broken: wire.Broken | None = None
        self.ended: wire.Ended | None = None
        self.rows: deque[MetricRow] = deque(maxlen=MAX_KEPT_ROWS)
        self.on_stripes: Callable[[wire.WriteStripe | wire.ForgetStripes], None] = lambda command: None
        """What to do with the copies of parts of checkpoints; must not wait."""
        self._word = word or ProgressWord()
        self._step = 0
        self.stage("setup")
        self._word.beat()
        self._former: Former | None = None
        self._formed: dict[int, tuple[wire.GenerationRecord, Communicator | None]] = {}
        self._connection = connection
        self._reader = reader
        self._write_lock = threading.Lock()
        self._changed = threading.Condition()

    # --- threads ------------------------------------------------------------------------------------------------------

    def serve(self, former: Former) -> None:
        """Start the threads that read commands and say signs of life."""
        self._former = former
        threading.Thread(target=self._read, name="control", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._reader:
                self.obey(wire.decode(json.loads(line)))
        except Exception:
            # A process that does not listen any more would hold up all others: it is better dead.
            traceback.print_exc()
            os._exit(70)
        # The supervisor is gone, and with it everyone who could tell this process what to do.
        os._exit(1)

    def obey(self, command: Any) -> None:
        """Carry out a command, unless it is of a controller that was superseded."""
        if command.attempt < self.attempt:
            return
        with self._changed:
            self.attempt = command.attempt
            match command:
                case wire.Prepare(record=record):
                    self._prepare(record)
                case wire.Revoke(through=through):
                    self.revoked_through = max(self.revoked_through, through)
                    self.highest = max(self.highest, through)
                case wire.Checkpoint(request=request, lost_step=lost_step):
                    self.checkpoint_request = max(self.checkpoint_request, request)
                    self._lost_step = lost_step
                case wire.Leave(how=how):
                    self.leaving = Leaving.PAUSE if how == "pause" else Leaving.STOP
                case wire.Release():
                    self.is_released = True
                case wire.WriteStripe():
                    self.on_stripes(command)
                case wire.ForgetStripes(folder=folder):
                    self.saved_step = max(self.saved_step, int(folder.rsplit("-", 1)[1]))
                    self.on_stripes(command)
                case wire.Acknowledge(step=step):
                    while self.rows and self.rows[0].step <= step:
                        self.rows.popleft()
                case wire.Attach():
                    self._describe()
                case wire.TellStacks(number=number):
                    self.say(wire.Stacks(self.start.incarnation, number, describe_stacks()))
                case _:
                    pass
            self._changed.notify_all()

    def _prepare(self, record: wire.GenerationRecord) -> None:
        if record.number <= self.highest:
            return  # said twice, or of the past
        self.highest = record.number
        rank = record.rank_of(self.start.incarnation)
        if rank is None:
            self._offer(record, None)
            return
        self._begin_forming(record, rank)

    def _begin_forming(self, record: wire.GenerationRecord, rank: int) -> None:
        threading.Thread(target=self._form, args=(record, rank), name=f"form-{record.number}", daemon=True).start()

    def _form(self, record: wire.GenerationRecord, rank: int) -> None:
        assert self._former is not None
        try:
            communicator = self._former(record, rank, lambda: self._is_over(record))
        except Exception as error:  # also what torch may raise besides: nobody else would tell of it
            if self.revoked_through < record.number:
                self.say(wire.FormFailed(self.start.incarnation, record.number, f"{error}"))
            return
        with self._changed:
            self._offer(record, communicator)
            self._changed.notify_all()

    def _is_over(self, record: wire.GenerationRecord) -> bool:
        """Whether waits of its group must end: it is revoked, or this worker was to join it and can join another."""
        is_joined = self.record is not None and self.record.number >= record.number
        may_leave = self.start.incarnation in record.joining and not is_joined
        return self.is_revoked(record.number) or (may_leave and self.formed > record.number)

    def _offer(self, record: wire.GenerationRecord, communicator: Communicator | None) -> None:
        if self._is_stale(record) or record.number < self.highest:  # a later one is minted where it was given up
            if communicator is not None:
                communicator.bury()
            return
        self._formed[record.number] = (record, communicator)
        self.formed = max(self.formed, record.number)
        if communicator is None or not record.joining:
            self.ready = max(self.ready, record.number)
        self.say(wire.Formed(self.start.incarnation, record.number))

    def _beat(self) -> None:
        while True:
            self._word.beat()
            time.sleep(BEAT_EVERY_S)

    def _describe(self) -> None:
        """Answer a new controller: all in one go, so that no newer row comes between those it is to be told."""
        with self._write_lock:
            rows = list(self.rows)
            messages: list[wire.Message] = [self._snapshot(tuple(rows[:ROWS_IN_MESSAGE]))]
            if len(rows) > ROWS_IN_MESSAGE and self.record is not None:
                number = self.record.number
                messages += committed(self.start.incarnation, number, self._step, rows[ROWS_IN_MESSAGE:])
            self._write(*messages)

    def _snapshot(self, rows: tuple[MetricRow, ...]) -> wire.Snapshot:
        return wire.Snapshot(
            incarnation=self.start.incarnation,
            hello=self.hello,
            standby=self.standby,
            record=self.record,
            pending=self.highest,
            broken=self.broken,
            ended=self.ended,
            step=self._step,
            rows=rows,
            saved_step=self.saved_step,
        )

    # --- the main thread ----------------------------------------------------------------------------------------------

    def say(self, message: wire.Message) -> None:
        """Send a message up."""
        with self._write_lock:
            self._write(message)

    def say_committed(
        self, generation: int, step: int, rows: Sequence[MetricRow] = (), pace: tuple[tuple[int, int], ...] = ()
    ) -> None:
        """So many steps are done; the rows in as many messages as they need."""
        *before, last = committed(self.start.incarnation, generation, step, rows)
        for message in (*before, replace(last, pace=pace)):
            self.say(message)

    def _write(self, *messages: wire.Message) -> None:
        """With the write lock held."""
        if self._connection is None:
            return
        try:
            for message in messages:
                self._connection.sendall(json.dumps(wire.encode(message)).encode() + b"\n")
        except OSError:
            os._exit(1)  # nobody is there to train for

    def stage(self, name: str, step: int | None = None, microbatch: int | None = None) -> None:
        """Say what the main thread does from now on: a few stores, no system call."""
        self._step = self._step if step is None else step
        self.present_stage = name
        self._word.write(name, self._step, self.record.number if self.record else 0, microbatch)

    def may_switch(self, number: int) -> None:
        """The joiners of this generation are up to date, or are waited for from here on."""
        with self._changed:
            if number in self._formed:
                self.ready = max(self.ready, number)

    def is_revoked(self, number: int) -> bool:
        """Whether this generation is over."""
        return self.revoked_through >= number

    def look(self, number: int) -> tuple[wire.GenerationRecord, Communicator | None] | None:
        """A generation this worker has formed, which stays where it is; None: it is gone."""
        with self._changed:
            return self._formed.get(number)

    def take(self, number: int) -> tuple[wire.GenerationRecord, Communicator | None]:
        """A formed generation that is entered now. Older ones that were never used go."""
        with self._changed:
            record, communicator = self._formed.pop(number)
            self._bury_below(number)
        return record, communicator

    def drop_failed(self, failed: int) -> None:
        """Nothing is agreed on: bury what the controller has given up since, as a later generation tells.

        Args:    failed: a generation to come whose joiners this worker could not bring up to date; 0: none.
        """
        if not self._formed:
            return
        with self._changed:
            dropped = [number for number in self._formed if number < self.highest or number == failed]
            if self.ready in dropped:
                self.ready = 0
            self._bury(dropped)

    @property
    def is_alone(self) -> bool:
        """No controller: the program was started by hand."""
        return self._connection is None

    @property
    def enterable(self) -> int:
        """The newest generation that is not revoked and formed, and that this worker may enter from none; 0: none.

        What is to follow another generation is switched to from that one, or joined: who has lost touch waits for the
        revoke of both.
        """
        with self._changed:
            for number, (record, communicator) in sorted(self._formed.items(), reverse=True):
                may_enter = not record.follows or self.start.incarnation in record.joining
                if number > self.revoked_through and communicator is not None and may_enter:
                    return number
            return 0

    def wait_for_generation(
        self, told: int, on_revoke: Callable[[int], None]
    ) -> tuple[wire.GenerationRecord, Communicator]:
        """Block until there is a generation to enter.

        Args:
            told: the controller knows that this worker has left all generations up to this number.
            on_revoke: called with each higher number through which everything is revoked, while waiting.
        Raises:
            LeaveTraining: nothing of it is needed any more: it had ended, and its release met a revoke.
        """
        while True:
            with self._changed:
                if self.is_released:
                    raise LeaveTraining
                revoked, number = self.revoked_through, self.enterable
                if number:
                    record, communicator = self.take(number)
                    assert communicator is not None
                    return record, communicator
                if revoked <= told:
                    self._changed.wait()
                    continue
            told = revoked
            on_revoke(revoked)

    def wait_for_release(self, number: int, step: int) -> bool:
        """Block until the controller has all it needs of this worker, which stands at `step` in generation `number`.

        Returns: False: not yet; the checkpoint of this step was lost, and is asked for again.
        Raises:
            GenerationLost: the generation was revoked meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.is_released or self.is_revoked(number) or self._lost_step == step)
            if self.is_released:
                return True
            if self.is_revoked(number):
                raise GenerationLost("the generation was revoked")
            self._lost_step = -1
            return False

    def begin(self, record: wire.GenerationRecord) -> None:
        """The main thread trains in this generation. Those that were to follow another one will not be."""
        with self._changed:
            self.record, self.broken = record, None
            self._bury([number for number, (formed, _) in self._formed.items() if self._is_stale(formed)])

    def _is_stale(self, record: wire.GenerationRecord) -> bool:
        return self.record is not None and 0 < record.follows < self.record.number

    def _bury_below(self, number: int) -> None:
        self._bury([one for one in self._formed if one < number])

    def _bury(self, numbers: list[int]) -> None:
        for number in numbers:
            _, communicator = self._formed.pop(number)
            if communicator is not None:
                communicator.bury()


def committed(incarnation: str, generation: int, step: int, rows: Sequence[MetricRow]) -> list[wire.Committed]:
    """So many steps are done: the rows that are to be told, in as many messages as they need (at least one)."""
    starts = range(0, max(1, len(rows)), ROWS_IN_MESSAGE)
    return [wire.Committed(incarnation, generation, step, tuple(rows[at : at + ROWS_IN_MESSAGE])) for at in starts]
