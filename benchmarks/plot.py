"""A small bar chart as SVG: groups of horizontal bars on a logarithmic axis, with the range as a whisker. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP = 760, 150, 70, 62
BAR, GAP, GROUP_GAP = 13, 4, 26
COLOURS = ("#2563eb", "#9ca3af", "#f59e0b", "#8b5cf6", "#10b981", "#ef4444")
LOW, HIGH = 0.01, 100.0
"""The axis, in seconds; what is shorter is drawn at its beginning."""


@dataclass(frozen=True)
class Bar:
    """One peer's values of one figure."""

    name: str
    values: Sequence[float]


def bars_svg(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """The chart; a bar without values says so.

    Units:   values in seconds.
    """
    names = list(dict.fromkeys(bar.name for _, bars in groups for bar in bars))
    colour = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    height = TOP + sum(len(bars) * (BAR + GAP) + GROUP_GAP for _, bars in groups) + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(12, 20, title, size=14, weight="bold"),
        *legend(names, colour),
        *axis(height),
    ]
    y = TOP
    for label, bars in groups:
        parts.append(text(LEFT - 8, y + len(bars) * (BAR + GAP) / 2 + 3, label, anchor="end"))
        for bar in bars:
            parts += draw(bar, y, colour[bar.name])
            y += BAR + GAP
        y += GROUP_GAP
    return "\n".join([*parts, "</svg>"]) + "\n"


def place(value: float) -> float:
    """Where a value lies on the axis."""
    share = math.log(min(max(value, LOW), HIGH) / LOW) / math.log(HIGH / LOW)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(bar: Bar, y: float, colour: str) -> list[str]:
    if not bar.values:
        return [text(LEFT + 4, y + BAR - 3, f"{bar.name}: none measured", fill="#6b7280")]
    middle, low, high = statistics.median(bar.values), min(bar.values), max(bar.values)
    length = max(2.0, place(middle) - LEFT)
    centre = y + BAR / 2
    return [
        f'<rect x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>',
        f'<path d="M{place(low):.1f} {centre:.1f}H{place(high):.1f}" stroke="#111827" stroke-width="1.5"/>',
        text(max(place(high), LEFT + length) + 6, y + BAR - 3, f"{middle:.2f}" if middle < 1 else f"{middle:.1f}"),
    ]


def legend(names: Sequence[str], colour: dict[str, str]) -> list[str]:
    parts, x = [], 12.0
    for name in names:
        parts.append(f'<rect x="{x:.0f}" y="30" width="10" height="10" rx="2" fill="{colour[name]}"/>')
        parts.append(text(x + 15, 39, name))
        x += 36 + 6.2 * len(name)
    return parts


def axis(height: int) -> list[str]:
    parts, tick = [], LOW
    while tick <= HIGH * 1.001:
        x = place(tick)
        parts.append(f'<path d="M{x:.1f} {TOP - 8}V{height - 26}" stroke="#e5e7eb"/>')
        parts.append(text(x, height - 12, f"{tick:g} s", anchor="middle", fill="#6b7280"))
        tick *= 10
    return parts


def text(
    x: float,
    y: float,
    said: str,
    *,
    size: int = 11,
    anchor: str = "start",
    weight: str = "normal",
    fill: str = "#111827",
) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(said)}</text>'
