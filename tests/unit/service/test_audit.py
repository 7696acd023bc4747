"""The list of what can be asked for is the list of what is written."""

from __future__ import annotations

import re
from pathlib import Path

from rubato.wire.events import EventKind
from service.audit import ACTIONS
from service.workers import _EVENTS

WITHOUT_EVENT = re.compile(r'(?:\baudit\([^"]*?|action=)"([a-z]+\.[a-z_]+)"')
WITH_EVENT = re.compile(r"(?:record_wish|_record|action=str)\([^)]*?EventKind\.(\w+)", re.DOTALL)
PINNING = {EventKind.CHECKPOINT_PINNED, EventKind.CHECKPOINT_UNPINNED}
"""Chosen before they are written."""


def test_every_action_that_is_written_can_be_asked_for() -> None:
    sources = [path.read_text() for path in Path("service").rglob("*.py")]
    written = {action for source in sources for action in WITHOUT_EVENT.findall(source)}
    written |= {str(EventKind[name]) for source in sources for name in WITH_EVENT.findall(source)}
    assert written | {str(kind) for kind in (*_EVENTS.values(), *PINNING)} == ACTIONS
