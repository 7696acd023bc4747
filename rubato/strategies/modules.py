"""Modules that a cut may name, as errors tell them. Pure, and without torch: the planner tells them, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MOST_NAMED = 8


def modules_by_size(parameters: Iterable[tuple[str, int]], depth: int = 1) -> str:
    """The outermost modules in words, the one with most parameters first; those within where there is but one.

    Args:
        parameters: by dotted name of the module that has them, how many.
        depth: of the outermost modules' names.
    """
    counted = list(parameters)
    for parts in (depth, depth + 1):
        found: Counter[str] = Counter()
        for name, count in counted:
            found[".".join(name.split(".")[:parts])] += count
        if len(found) > 1:
            break
    named = [f"{name} ({count:,} parameters)" for name, count in found.most_common(MOST_NAMED)]
    return (", ".join(named) or "none") + (" ..." if len(found) > MOST_NAMED else "")
