"""Every spec falls into one cell of the table in docs/explanation/strategies.md, and each cell is that of some spec."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.planner.taxonomy import Cell, cell_of
from rubato.wire.aggregation import Algorithm, Method
from rubato.wire.local_updates import LocalMethod
from rubato.wire.spec import JobSpec, parse_spec

DOCUMENT = Path(__file__).parents[3] / "docs" / "explanation" / "strategies.md"
SPEC = {"name": "a", "entrypoint": "train.py:train", "reproducible": False}


def rows() -> list[list[str]]:
    """Of the table: what is shared out, gradients, consistency, pattern, how a spec says it."""
    _, _, after = DOCUMENT.read_text().partition("## Where a job stands")
    lines = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def spec_of(**aggregation: Any) -> JobSpec:
    return parse_spec({**SPEC, "aggregation": aggregation})


def possible() -> list[JobSpec]:
    """Of each algorithm and each method, and of both where they go together."""
    found = [parse_spec({**SPEC, "backend": "ray_train"})]
    local: list[dict[str, Any]] = [
        {"method": one, **({"cut": "head"} if one == "layer_separation" else {})}
        for one in get_args(LocalMethod)
        if one != "none"
    ]
    local.append({"method": "asynchronous", "staleness": 2})
    found += [parse_spec({**SPEC, "local_updates": one}) for one in local]
    for algorithm in get_args(Algorithm):
        for method in get_args(Method):
            try:
                found.append(spec_of(algorithm=algorithm, compression={"method": method}))
            except SpecError:
                assert algorithm != "auto"
    return found


def test_the_table_has_the_cells_that_there_are() -> None:
    told = [Cell(*row[:4]) for row in rows() if not row[4].startswith("refused")]  # type: ignore[arg-type]
    assert len(told) == len(set(told)), "each cell once"
    assert set(told) == {cell_of(spec) for spec in possible()}


@given(st.sampled_from(possible()))
def test_a_spec_is_named_in_its_own_cell(spec: JobSpec) -> None:
    (row,) = [row for row in rows() if Cell(*row[:4]) == cell_of(spec)]  # type: ignore[arg-type]
    local = spec.local_updates
    named = spec.backend if spec.backend != "rubato" else local.method if local.is_on else spec.aggregation.name
    assert f"`{named}`" in row[4]


@pytest.mark.parametrize(
    ("shared_out", "ways"),
    [
        ("model", ("tensor",)),
        ("model, in stages", ("pipeline",)),
        ("data and model", ("tensor", "pipeline")),
    ],
)
def test_what_is_not_built_is_refused_with_the_reason(shared_out: str, ways: tuple[str, ...]) -> None:
    (row,) = [row for row in rows() if row[0] == shared_out]
    assert row[4].startswith("refused")
    assert len(ways) > 1 or f"`parallelism.{ways[0]}`" in row[4]
    with pytest.raises(SpecError) as refused:
        parse_spec({**SPEC, "parallelism": dict.fromkeys(ways, 2)})
    assert [one.path for one in refused.value.findings] == [f"parallelism.{way}" for way in ways]
    for one in refused.value.findings:
        assert re.search("got 2, but .* every worker of this release has the whole", one.message)
    assert parse_spec({**SPEC, "parallelism": dict.fromkeys(ways, 1)}) == parse_spec(SPEC)


def test_all_that_is_refused_is_in_the_table() -> None:
    refused = [row[0] for row in rows() if row[4].startswith("refused")]
    assert refused == ["model", "model, in stages", "data and model"]
