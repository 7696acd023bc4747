"""What the page's speed is held to. Pure: `tests/e2e/speed.py` measures, this judges."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PAINT_MS = 1_000
"""A view has painted something for the first time."""
MAX_TASK_MS = 500
"""The longest that the page answers to nobody: at half a second a click seems lost."""
MAX_BYTES = 150_000
"""What is loaded before the page works, as it travels."""
MAX_LOG_ELEMENTS = 1_500
"""Of a log, however long it is."""
MAX_LIST_ELEMENTS = 5_000
"""Of the list of jobs, however many there are."""


@dataclass(frozen=True)
class Seen:
    """A view as it was measured."""

    name: str
    paint_ms: float | None
    """None: it never painted."""
    frames_ms: tuple[float, ...]
    """Between frames while it was scrolled, in order."""
    tasks_ms: tuple[float, ...]
    """Of tasks of more than 50 ms, which browsers call long."""
    elements: int
    most_elements: int | None = None
    """Where it holds what it shows and a margin, and not all there is."""
    loaded_bytes: int | None = None
    """None: not measured of this one."""

    def __str__(self) -> str:
        paint = "none" if self.paint_ms is None else f"{self.paint_ms:.0f} ms"
        size = "" if self.loaded_bytes is None else f"; {self.loaded_bytes / 1000:.1f} kB loaded"
        frames = self.frames_ms
        return (
            f"{self.name}: first paint {paint}; frames {frames[len(frames) // 2]:.0f} ms, 95 of 100 within "
            f"{frames[len(frames) * 95 // 100]:.0f} ms, longest {frames[-1]:.0f} ms; {len(self.tasks_ms)} long tasks, "
            f"longest {max(self.tasks_ms, default=0):.0f} ms; {self.elements} elements{size}"
        )


def judge(seen: Seen, *, with_times: bool = True) -> list[str]:
    """What is wrong with a view, a sentence each.

    Args:
        with_times: also what is a matter of the machine.
    """
    found = []
    if seen.most_elements is not None and seen.elements > seen.most_elements:
        found.append(f"{seen.elements} elements, where {seen.most_elements} are borne")
    if seen.loaded_bytes is not None and not 0 < seen.loaded_bytes < MAX_BYTES:
        found.append(f"{seen.loaded_bytes} bytes are loaded, and there must be some and fewer than {MAX_BYTES}")
    if with_times:
        if seen.paint_ms is None:
            found.append("no first paint was seen")
        elif seen.paint_ms > MAX_PAINT_MS:
            found.append(f"first paint after {seen.paint_ms:.0f} ms, and it must come within {MAX_PAINT_MS} ms")
        longest = max(seen.tasks_ms, default=0)
        if longest > MAX_TASK_MS:
            found.append(f"a task took {longest:.0f} ms, and none may take more than {MAX_TASK_MS} ms")
    return [f"{seen.name}: {text}" for text in found]
