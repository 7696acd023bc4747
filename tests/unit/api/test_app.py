from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from api.app import ROUTERS, create_app
from api.reference import render_reference
from service.settings import Settings

COMMITTED = Path("docs/reference/openapi.json")


def test_the_service_imports_neither_ray_nor_torch_nor_numpy() -> None:
    code = "import api.__main__, sys; print(sorted({'ray', 'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_committed_description_is_current(tmp_path: Path) -> None:
    made = create_app(Settings(home=tmp_path)).openapi()
    assert json.loads(COMMITTED.read_text()) == made, "refresh it: python -m api.openapi"


def test_every_route_tells_what_it_does() -> None:
    for router in ROUTERS:
        for route in router.routes:
            description = getattr(route, "description", "")
            assert description, f"{getattr(route, 'path', route)} has no docstring"


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/cluster/v1/attempts/acquire"])
def test_refusals_are_described_as_problem_documents(path: str) -> None:
    operation = json.loads(COMMITTED.read_text())["paths"][path]["post"]
    assert "application/problem+json" in operation["responses"]["422"]["content"]


def test_the_description_can_be_read_without_a_script(tmp_path: Path) -> None:
    description = create_app(Settings(home=tmp_path)).openapi()
    page = render_reference(description)
    for path in description["paths"]:
        assert path in page
    assert "<script" not in page
    evil = {"paths": {"/<b>": {"get": {"description": "<img>", "responses": {"200": {}}, "tags": ["<i>"]}}}}
    assert not {"<b>", "<img>", "<i>"} & set(re.findall(r"<\w+>", render_reference(evil)))
