"""Entity tags: two readings of a thing have the same tag where what people may change of it is the same."""

from __future__ import annotations

import hashlib
import json


def tag_of(*parts: object) -> str:
    """A strong tag (RFC 9110, section 8.8.3) of what can be written as JSON."""
    return f'"{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]}"'
