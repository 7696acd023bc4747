from __future__ import annotations

import io
from dataclasses import replace

from rubato.launch.progress import ProgressPrinter, describe_progress
from rubato.wire.cluster import LogLine, Observed

SEEN = Observed("running", "training", 2, workers=4, joining=0, step=120, total_steps=500, restarts=0, scalings=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_says_where_it_stands() -> None:
    assert describe_progress(SEEN, 0.31239) == "training, step 120 of 500, loss 0.3124, 4 workers"
    waiting = replace(SEEN, workers=1, joining=2, total_steps=None, reason="2 of 3 workers wait for a slot")
    text = describe_progress(waiting, None)
    assert text == "training, step 120, 1 worker (2 joining), 2 of 3 workers wait for a slot"


def test_a_file_gets_plain_lines_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    printer = ProgressPrinter(stream, clock)
    for step in range(100):
        printer.observe(replace(SEEN, step=step))
        clock.now += 0.1
    printer.close()
    assert stream.getvalue().count("\n") == 2
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_keeps_the_progress_line_below_what_is_written() -> None:
    stream = Terminal()
    printer = ProgressPrinter(stream, Clock())
    printer.observe(SEEN)
    printer.output(LogLine("w1.1", 0, "now", "stdout", "hello"))
    printer.event("generation.formed", "generation 2 formed")
    printer.event("checkpoint.committed", "not worth a line")
    printer.close()
    lines = stream.getvalue().split("\r\x1b[2K")
    progress = describe_progress(SEEN, None)
    assert lines == ["", progress, f"[rank 0] hello\n{progress}", f"rubato: generation 2 formed\n{progress}", ""]


def test_what_a_worker_writes_does_not_steer_the_terminal() -> None:
    line = LogLine("w1.1", 0, "now", "stdout", "\x1b]0;title\x07\x1b[31mred")
    for stream, text in ((Terminal(), "\x1b[31mred\x1b[0m"), (io.StringIO(), "red")):
        ProgressPrinter(stream, Clock()).output(line)
        assert stream.getvalue() == f"[rank 0] {text}\n"
