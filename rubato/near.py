"""What somebody may have meant who named a thing that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'train'?`, or nothing where no name is close."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
