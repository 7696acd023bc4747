"""`python -m api.openapi`: writes docs/reference/openapi.json anew."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from api.app import create_app
from service.settings import Settings

COMMITTED = Path(__file__).resolve().parent.parent / "docs" / "reference" / "openapi.json"


def describe() -> str:
    """The description of the API, as it is committed."""
    with tempfile.TemporaryDirectory() as home:
        return json.dumps(create_app(Settings(home=Path(home))).openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    COMMITTED.parent.mkdir(parents=True, exist_ok=True)
    COMMITTED.write_text(describe())
    print(f"wrote {COMMITTED}")
