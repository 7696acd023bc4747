"""Stacks of a process that lives: told by itself, by a signal's handler where its interpreter does not run, or not."""

from __future__ import annotations

import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rubato.launch.environment import child_environment
from rubato.launch.stacks import current_first
from rubato.launch.supervisor import ChildPlan
from rubato.wire import worker as wire
from tests.stopping import stopped
from tests.watched_child import START, Watched, watching

PROGRAM = """
import json, os, re, socket, threading, time
from rubato.engine.stacks import describe_stacks
from rubato.launch.stacks import answer_signals
from rubato.launch.tether import tether_to_supervisor
tether_to_supervisor()
control = socket.socket(fileno=int(os.environ["RUBATO_CONTROL_FD"]))
lines = control.makefile("r")
assert json.loads(lines.readline())["type"] == "Start"
def say(**message):
    control.sendall(json.dumps({"incarnation": "1.1", **message}).encode() + b"\\n")
def obey():
    for line in lines:
        command = json.loads(line)
        if command["type"] == "TellStacks":
            say(type="Stacks", number=command["number"], text=describe_stacks())
def begin():
    threading.Thread(target=obey, name="control", daemon=True).start()
    say(type="Hello", store="here:1")
def wait_in_the_program():
    time.sleep(3600)
"""
Run = Callable[[str], Watched]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with watching() as begin:

        def start(script: str) -> Watched:
            environment = child_environment(os.environ, working_dir=tmp_path)
            command = (sys.executable, "-P", "-c", PROGRAM + textwrap.dedent(script))
            watched = begin(ChildPlan(START, "here", tmp_path, environment, command))
            watched.until(wire.Hello)
            return watched

        yield start


def ask(watched: Watched, number: int) -> wire.Stacks:
    watched.supervisor.send(wire.TellStacks(3, number))
    told: wire.Stacks = watched.until(wire.Stacks)
    assert told.number == number
    return told


def ask_until(watched: Watched, is_there: Callable[[wire.Stacks], bool]) -> wire.Stacks:
    """Again and again, until the main thread is where it was sent: the process says hello on its way there."""
    return next(told for told in (ask(watched, number) for number in itertools.count(1)) if is_there(told))


def is_waiting(told: wire.Stacks) -> bool:
    return "in wait_in_the_program\n" in told.text


def test_a_process_whose_interpreter_runs_tells_them_itself(run: Run) -> None:
    """Where the machine is so busy that it does not run in time, it is interrupted, and tells them when asked again."""
    watched = run("answer_signals(); begin(); wait_in_the_program()")
    told = ask_until(watched, lambda told: is_waiting(told) and not told.cause)
    assert told.text.startswith("Thread MainThread (most recent call first):\n")
    assert "in wait_in_the_program\n" in told.text.split("Thread control")[0]
    assert "in obey\n" in told.text.split("Thread control")[1]
    assert watched.supervisor.pid is not None
    os.kill(watched.supervisor.pid, 0)


def test_where_the_interpreters_lock_is_held_in_c_a_signal_tells_them(run: Run) -> None:
    """A search that takes longer than the universe, and lets nobody else run."""
    watched = run("answer_signals(); begin(); re.match('(a+)+$', 'a' * 60 + 'b')")
    told = ask_until(watched, lambda told: told.cause != "")
    assert told.cause == "its interpreter did not run, so it was interrupted"
    assert told.text.startswith("Current thread ")
    assert "in match\n" in told.text
    again = ask(watched, told.number + 1)
    assert again.text.startswith("Current thread "), "it lives, and hangs on"
    numbers = [one.number for one in watched.seen if isinstance(one, wire.Stacks)]
    assert numbers == list(range(1, again.number + 1)), "each was answered once"


def test_a_process_that_is_stopped_is_said_so_and_answers_later(run: Run) -> None:
    watched = run("answer_signals(); begin(); wait_in_the_program()")
    first = ask_until(watched, is_waiting)
    assert watched.supervisor.pid is not None
    with stopped(watched.supervisor.pid):
        told = ask(watched, first.number + 1)
    assert (told.text, told.cause) == ("", "it does not run at all: it is stopped, or waits in the kernel")
    assert is_waiting(ask(watched, first.number + 2))


def test_a_process_without_the_handler_is_left_alone(run: Run) -> None:
    """The signal would end it. So it is with one that is only starting, or whose program took the handler away."""
    watched = run("begin(); re.match('(a+)+$', 'a' * 60 + 'b')")
    told = ask_until(watched, lambda told: told.cause != "")
    assert told.text == ""
    assert "has not come so far" in told.cause
    assert watched.supervisor.pid is not None
    os.kill(watched.supervisor.pid, 0)


def test_the_interrupted_thread_comes_first() -> None:
    text = "Thread 0x1 (most recent call first):\n  one\n\nCurrent thread 0x2 (most recent call first):\n  two\n"
    assert current_first(text).splitlines() == [
        "Current thread 0x2 (most recent call first):",
        "  two",
        "Thread 0x1 (most recent call first):",
        "  one",
    ]
