"""A secret that is easy to find again, and the search for it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

CANARY = "c4n4ry/Value+with\"Quotes'and\\more"
SAID = f"digest {hashlib.sha256(CANARY.encode()).hexdigest()}"
"""What a program says that was given it: the search finds this, so it would find the other, too."""
FORMS = (CANARY, json.dumps(CANARY)[1:-1], repr(CANARY)[1:-1], CANARY[:12])


def holding(needle: bytes, *folders: Path) -> list[Path]:
    """The files below these folders that hold some bytes."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    continue  # it was a temporary one
                if needle in content:
                    found.append(path)
    return found


def check_nowhere(shown: str, *folders: Path) -> None:
    """The canary stands in no reply and in no file, also not as the hexadecimal digits of a database's text."""
    assert holding(SAID.encode(), *folders)
    for form in FORMS:
        assert form not in shown
        for needle in (form.encode(), form.encode().hex().encode()):
            assert holding(needle, *folders) == []
