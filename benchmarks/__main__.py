"""Rubato beside its peers, in one run on one machine.

python -m benchmarks [--peers rubato,ddp,...] [--figures up_1_2,...] [--rounds 3] [--steps 320] [--write]

A peer that fails is shown as failed, with the reason, and does not stop the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.document import DOCUMENT, insert
from benchmarks.figures import FIGURES, Measured, of_fixed, of_story
from benchmarks.flags import words
from benchmarks.machine import machine, today, versions
from benchmarks.peers import PEERS, Peer
from benchmarks.peers.peer import MAX_WORKERS, PeerFailed
from benchmarks.processes import nothing_left_behind
from benchmarks.programs.workload import HOLD, NUM_SAMPLES, WIDTH, Workload
from benchmarks.report import PLOT, Context, merge, plot, report
from benchmarks.story import Outcome, eventful, undisturbed

CHECKPOINT_EVERY = 10
STEADY_STEPS = 48
SHOW_EVERY_S = 2.0


class Progress:
    """What is going on, on stderr: a line that changes on a terminal, else one now and then."""

    def __init__(self) -> None:
        self._title, self._shown_at, self._began = "", 0.0, time.monotonic()

    def begin(self, title: str) -> None:
        self._title = title
        self._show("", end="\n")

    def tell(self, text: str) -> None:
        every = SHOW_EVERY_S if sys.stderr.isatty() else 10 * SHOW_EVERY_S
        if time.monotonic() - self._shown_at >= every:
            self._show(text, end="\r" if sys.stderr.isatty() else "\n")

    def _show(self, text: str, end: str) -> None:
        self._shown_at = time.monotonic()
        line = f"[{self._shown_at - self._began:4.0f} s] {self._title}{': ' if text else ''}{text}"
        print(f"{line:<100}", end=end, file=sys.stderr, flush=True)


@dataclass
class Bench:
    """The runs of one measurement."""

    flags: argparse.Namespace
    folder: Path
    load: float
    """Of the machine, before."""
    progress: Progress = field(default_factory=Progress)
    measured: dict[str, Measured] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    """Of the undisturbed runs, by peer."""

    def run(self) -> None:
        """All rounds; peers take turns, so that a busy minute does not meet one of them only."""
        self.measured = {name: Measured() for name in self.flags.peers}
        wanted = {figure.run for figure in FIGURES if figure.key in self.flags.figures}
        if "equal" in self.flags.figures:
            for name in self.flags.peers:
                self._undisturbed(name)
        for number in range(self.flags.rounds):
            for name in self.flags.peers:
                for run in ("two", "four", "story"):
                    if run in wanted:
                        self._one(name, run, number)
            self.keep(number + 1)

    def keep(self, rounds: int) -> None:
        """Write the raw figures so far, if they are wanted: what is stopped later was not for nothing."""
        if self.flags.json is not None:
            peers = {name: asdict(one) for name, one in self.measured.items()}
            kept = {"context": asdict(self.context(rounds)), "peers": peers}
            self.flags.json.write_text(json.dumps(kept, indent=1))

    def context(self, rounds: int) -> Context:
        """The terms of this measurement."""
        flags = self.flags
        packages = dict.fromkeys(package for name in flags.peers for package in PEERS[name].packages)
        terms = (rounds, flags.width, flags.batch, flags.device_seconds)
        return Context(today(), machine(self.load), versions(list(packages)), *terms)

    def _undisturbed(self, name: str) -> None:
        if not PEERS[name].is_elastic:
            return
        outcome = self._attempt(name, "undisturbed", 0)
        if outcome is not None:
            self.digests[name] = outcome.digest
            self._add(name, of_fixed(outcome, MAX_WORKERS))

    def _add(self, name: str, found: Mapping[str, float | None]) -> None:
        self.measured[name].add({key: value for key, value in found.items() if key in self.flags.figures})

    def _one(self, name: str, run: str, number: int) -> None:
        if run == "story" and not PEERS[name].is_elastic:
            return
        if run == "four" and number == 0 and name in self.digests:
            return  # the undisturbed run was that
        outcome = self._attempt(name, run, number)
        if outcome is None:
            return
        if run == "story":
            found = of_story(outcome, self._steps(name, run), self.flags.batch, self.digests.get(name))
        else:
            found = of_fixed(outcome, 2 if run == "two" else MAX_WORKERS)
        self._add(name, found)

    def _steps(self, name: str, run: str) -> int:
        if run in ("two", "four"):
            return int(self.flags.steady_steps)
        steps: int = self.flags.steps
        epoch = NUM_SAMPLES // int(self.flags.batch)
        return math.ceil(steps * PEERS[name].pace / epoch) * epoch

    def _attempt(self, name: str, run: str, number: int) -> Outcome | None:
        self.progress.begin(f"round {number + 1} of {self.flags.rounds}, {name}, {run}")
        folder = self.folder / f"{name}-{run}-{number}"
        folder.mkdir()
        job = Workload(
            str(folder),
            steps=self._steps(name, run),
            width=self.flags.width,
            batch=self.flags.batch,
            device_s=self.flags.device_seconds,
            hold_s=self.flags.hold,
            checkpoint_every=CHECKPOINT_EVERY if run in ("story", "undisturbed") else 0,
        )
        peer: Peer = PEERS[name].make(folder, job)
        try:
            if run == "story":
                (folder / HOLD).touch()
                return eventful(peer, self.progress.tell, (folder / HOLD).unlink)
            return undisturbed(peer, 2 if run == "two" else MAX_WORKERS, self.progress.tell)
        except (PeerFailed, AssertionError, OSError) as error:
            self.measured[name].failures[run] = str(error)
            print(f"{name}, {run}, failed: {error}", file=sys.stderr, flush=True)
            return None
        finally:
            peer.close()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Rubato beside its peers.")
    keys = [figure.key for figure in FIGURES]
    parser.add_argument("--peers", type=words(list(PEERS)), default=list(PEERS), help=", ".join(PEERS))
    parser.add_argument("--figures", type=words(keys), default=keys, help=", ".join(keys))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=320, help="of a run with changes; slow peers get more")
    parser.add_argument("--steady-steps", type=int, default=STEADY_STEPS, help="of a run without changes")
    parser.add_argument("--width", type=int, default=WIDTH, help="of the hidden layers; 1780: 10 million parameters")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--device-seconds",
        type=float,
        default=0.0,
        help="what a sample waits, as if a device computed it: the cores are free meanwhile",
    )
    parser.add_argument("--hold", type=float, default=0.0, help="seconds added to each step while things happen")
    parser.add_argument("--json", type=Path, default=None, help="keep the raw figures here, round by round")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="JSON", help="measure nothing: tell the figures kept in these files"
    )
    parser.add_argument("--keep", type=Path, default=None, help="keep the folders of the runs, with their logs, here")
    parser.add_argument("--write", action="store_true", help="write table and plot into docs/")
    return parser.parse_args(arguments)


@contextlib.contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """Where the runs keep their files: a folder that goes, or the one that was named."""
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="rb-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    flags = parse(arguments)
    if flags.again:
        measured, context = merge([json.loads(file.read_text()) for file in flags.again])
        tell(measured, context, flags)
        return 0
    load = os.getloadavg()[0]
    with nothing_left_behind(), work_folder(flags.keep) as folder:
        bench = Bench(flags, folder, load)
        bench.run()
    tell(bench.measured, bench.context(flags.rounds), flags)
    return 1 if any(one.failures for one in bench.measured.values()) else 0


def tell(measured: Mapping[str, Measured], context: Context, flags: argparse.Namespace) -> None:
    """The table, on the terminal and where it was asked for."""
    text = report(measured, context, flags.figures)
    print(text)
    if flags.write:
        if context.device_s:
            insert(DOCUMENT, "device", text)
        else:
            (DOCUMENT.parent / PLOT).write_text(plot(measured))
            insert(DOCUMENT, "peers", f"{text}\n\n![Downtime by event]({PLOT})")


if __name__ == "__main__":
    sys.exit(main())
