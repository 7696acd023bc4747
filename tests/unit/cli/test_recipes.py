from __future__ import annotations

import asyncio
from typing import Any

from api.routes.recipes import list_recipes
from tests.unit.cli.fake_service import FakeService, Rubato


def test_recipes_are_listed_with_what_can_be_set(service: FakeService, rubato: Rubato) -> None:
    said: Any = asyncio.run(list_recipes(None))  # type: ignore[arg-type]
    assert rubato("recipes", "--json").json == said["items"]
    lines = rubato("recipes").out.splitlines()
    first = said["items"][0]
    assert lines[0] == f"{first['name']}: {first['description']}"
    assert lines[1].split() == ["KEY", "TYPE", "DEFAULT", "WHAT"]
    for number, key in enumerate(first["config"], start=2):
        default = "null" if key["default"] is None else str(key["default"])
        assert lines[number].split() == [key["name"], *key["type"].split(), default, *key["doc"].split()]
    assert service.requests == []
