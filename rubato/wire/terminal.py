"""Text that a job chose, such as a line of its output, made fit for the terminal of whoever reads it."""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;:]*m"
_RESET = "\x1b[0m"
_CONTROLS = re.compile(
    f"(?P<colour>{_COLOUR})"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # cursor, screen, modes
    r"|(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)"  # title, clipboard, links
    r"|\x1b[ -/]*[0-~]?"  # all others, and the beginning of one that has no end
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def readable(text: str, *, keep_colours: bool) -> str:
    """What a person reads of a text: without control sequences and control characters other than tab and newline.

    Args:
        text: what somebody else wrote.
        keep_colours: leave colours and weights in; they end with the text.
    """
    if text.isprintable():  # nearly every line: there is nothing to look for
        return text
    is_coloured = False

    def kept(match: re.Match[str]) -> str:
        nonlocal is_coloured
        if not keep_colours or match["colour"] is None:
            return ""
        is_coloured = True
        return match[0]

    found = _CONTROLS.sub(kept, text)
    return found + _RESET if is_coloured and not found.endswith(_RESET) else found
