"""What a terminal showed as an SVG that moves: frames one below the other, and a window that jumps along.

pyte is the terminal; nothing that is kept up draws its screens (termtosvg has seen no release since 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

import pyte

Event = tuple[float, str]
"""Seconds from the start, and what came then."""

COLUMNS, ROWS = 104, 26
CELL_W, CELL_H, PAD, BAR = 7.8, 17, 14, 26
FONTS = "ui-monospace,Menlo,'DejaVu Sans Mono',monospace"
INK, PAPER = "#e4e0d8", "#1c1b18"
COLOURS = {
    "black": "#a09a8e", "red": "#ff8b80", "green": "#58c88f", "brown": "#efb356", "yellow": "#efb356",
    "blue": "#8aa4ff", "magenta": "#e58fd0", "cyan": "#4fd0c3", "white": INK, "default": INK,
}  # fmt: skip
"""pyte's names (brown is yellow); every other colour is shown as text."""

Cell = tuple[str, str, bool]
"""Character, colour, whether it is bold."""
Screen = tuple[tuple[Cell, ...], ...]


def screens(events: Iterable[Event]) -> list[tuple[float, Screen]]:
    """Every screen that differs from the one before, and from when it shows."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.Stream(screen)
    found: list[tuple[float, Screen]] = []
    for at, text in events:
        stream.feed(text)
        shown = tuple(
            tuple((cell.data, COLOURS.get(cell.fg, INK), cell.bold) for cell in (line[x] for x in range(COLUMNS)))
            for line in (screen.buffer[y] for y in range(ROWS))
        )
        if not found or shown != found[-1][1]:
            found.append((at, shown))
    return found


def draw(events: Sequence[Event], title: str) -> str:
    """The SVG. Equal lines are kept once; who wants no motion sees the last screen."""
    frames = screens(events)
    total = max(events[-1][0], 0.1)
    lines: dict[str, int] = {}
    bodies = []
    width, height = round(2 * PAD + COLUMNS * CELL_W), round(2 * PAD + BAR + ROWS * CELL_H)
    for number, (_, shown) in enumerate(frames):
        drawn = [(y, text) for y, line in enumerate(shown) if (text := _line(line))]
        uses = "".join(
            f'<use href="#l{lines.setdefault(text, len(lines))}" y="{number * height + y * CELL_H}"/>'
            for y, text in drawn
        )
        bodies.append(uses)
    jumps = "".join(
        f"{100 * at / total:.3f}%{{transform:translateY({-number * height}px)}}"
        for number, (at, _) in enumerate(frames)
    )
    kept = "".join(f'<g id="l{number}">{text}</g>' for text, number in lines.items())
    last = -(len(frames) - 1) * height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">\n<style>'
        f"text{{font:13px {FONTS};fill:{INK};white-space:pre}}.b{{font-weight:700}}"
        f"@keyframes f{{{jumps}100%{{transform:translateY({last}px)}}}}#f{{animation:f {total:.1f}s step-end infinite}}"
        f"@media(prefers-reduced-motion:reduce){{#f{{animation:none;transform:translateY({last}px)}}}}</style>\n"
        f'<defs>{kept}</defs><rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>'
        + "".join(f'<circle cx="{18 + 16 * dot}" cy="17" r="5" fill="#433f39"/>' for dot in range(3))
        + f'\n<svg x="{PAD}" y="{PAD + BAR}" width="{width - 2 * PAD}" height="{ROWS * CELL_H}"><g id="f">'
        + "\n".join(bodies)
        + "</g></svg>\n</svg>\n"
    )


def _line(line: tuple[Cell, ...]) -> str:
    """The text of a line, a piece for each run of one look; empty for a blank one."""
    pieces = []
    x = 0
    for (colour, is_bold), run in groupby(line, key=lambda cell: cell[1:]):
        text = "".join(cell[0] for cell in run)
        if words := text.rstrip():
            look = (f' style="fill:{colour}"' if colour != INK else "") + (' class="b"' if is_bold else "")
            lead = len(words) - len(words.lstrip())
            place = f'x="{(x + lead) * CELL_W:.1f}" y="13" textLength="{(len(words) - lead) * CELL_W:.1f}"'
            pieces.append(f"<text {place}{look}>{escape(words[lead:])}</text>")
        x += len(text)
    return "".join(pieces)
