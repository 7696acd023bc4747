"""A training process that speaks the protocol and trains nothing. Its config says how it behaves.

steps: how many. step_s: how long one takes. die_at, exit_code, signal: end there, in the first incarnation only.
Started with the argument deaf, it does not leave when it is told to.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from rubato.checkpoint.files import write_file
from rubato.errors import CheckpointError
from rubato.launch.tether import tether_to_supervisor
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from rubato.wire.codec import to_json

tether_to_supervisor()
control = socket.socket(fileno=int(os.environ["RUBATO_CONTROL_FD"]))
lines = control.makefile("r")
commands: queue.SimpleQueue[wire.Command] = queue.SimpleQueue()


def read() -> None:
    for line in lines:
        commands.put(wire.decode(json.loads(line)))
    os._exit(9)


def say(message: wire.Message) -> None:
    control.sendall(json.dumps(wire.encode(message)).encode() + b"\n")


def save(start: wire.Start, record: wire.GenerationRecord, step: int) -> None:
    if start.storage:
        folder = f"{record.attempt}-{step}"
        try:
            file = write_file(Path(start.storage) / folder / "stripe-0.bin", [str(step).encode()])
        except CheckpointError as error:
            say(wire.StripeFailed(start.incarnation, folder, step, f"{error}", record.number))
            return
        say(wire.StripeWritten(start.incarnation, record.number, step, folder, 0, 1, (to_json(file),)))


def main() -> None:
    start = wire.decode(json.loads(lines.readline()))
    threading.Thread(target=read, daemon=True).start()
    me, config = start.incarnation, start.spec["config"]
    steps, is_first = int(config.get("steps", 3)), me.endswith(".1")
    print(f"hello from {me}")
    say(wire.Hello(me, f"{start.host}:1"))
    say(wire.Standby(me, "layout", "code", steps))
    record, step, leave, rows, beat_at = None, 0, "", [], 0.0
    while True:
        wait = record is None or step >= steps or leave
        try:
            command = commands.get(timeout=None if wait else float(config.get("step_s", 0.01)))
        except queue.Empty:
            command = None
        match command:
            case wire.Prepare():
                record = command.record
                if record.origin.folder:
                    step = int(record.origin.folder.rsplit("-", 1)[1])
                say(wire.Formed(me, record.number))
                say(wire.Entered(me, record.number, step))
            case wire.Leave() if "deaf" in sys.argv:
                pass
            case wire.Leave():
                leave = command.how
                if leave == "pause":
                    save(start, record, step)
                say(wire.Ended(me, "paused" if leave == "pause" else "stopped", step))
            case wire.Attach():
                say(
                    wire.Snapshot(me, None, None, record, record.number if record else 0, None, None, step, tuple(rows))
                )
            case wire.Release():
                sys.exit(0)
            case None:
                if is_first and step == int(config.get("die_at", -1)):
                    if "signal" in config:
                        os.kill(os.getpid(), int(config["signal"]))
                    sys.exit(int(config.get("exit_code", 1)))
                step += 1
                values = {"loss": 1.0 / step, "samples": 1.0}
                rows.append(MetricRow(step, datetime.now(UTC).isoformat(), record.number, 1, values))
                say(wire.Committed(me, record.number, step, (rows[-1],)))
                if step == steps:
                    save(start, record, step)
                    say(wire.Ended(me, "finished", step, "d" * 64))
            case wire.Checkpoint():
                save(start, record, step)
        if time.monotonic() > beat_at:
            beat_at = time.monotonic() + 1
            say(wire.Beat(me, record.number if record else 0, step, "compute", 0.0))


main()
