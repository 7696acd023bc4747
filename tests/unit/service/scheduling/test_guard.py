"""A job that nothing can be decided about costs itself, not the round of the others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json
from service.scheduling.capacity import Shape
from service.scheduling.decide import decide
from service.scheduling.guard import decide_around
from service.scheduling.view import Decision, Keep, Start, View, Wait, Waiting
from tests.unit.service.scheduling.worlds import NOW, cluster, elastic, waiting

UNCOUNTABLE = Shape(cpu="half", gpu=0)  # type: ignore[arg-type]


def around(view: View) -> tuple[dict[str, Decision], list[str]]:
    decisions, passed = decide_around(view, NOW)
    return {decision.job_id: decision for decision in decisions}, [decision.job_id for decision, _ in passed]


def test_a_queued_job_is_passed_over_and_told_and_the_next_one_starts() -> None:
    view = View((cluster(4),), (), (waiting("bad", shape=UNCOUNTABLE, age=9), waiting("good")))
    with pytest.raises(TypeError):
        decide(view, NOW)
    found, passed = around(view)
    assert passed == ["job_bad"]
    assert isinstance(found["job_good"], Start)
    assert isinstance(found["job_bad"], Wait)
    assert "cannot decide about it (TypeError" in found["job_bad"].because


def test_the_smallest_share_fits_a_countable_number_of_times() -> None:
    (decision,) = decide(View((cluster(8),), (), (waiting("tiny", shape=Shape(cpu=3e-308, gpu=0)),)), NOW)
    assert isinstance(decision, Start)


def test_a_job_with_slots_that_is_passed_over_keeps_them() -> None:
    bad = elastic("bad", 3, 4, num_microbatches=None)
    decisions, _ = around(View((cluster(4),), (bad,), (waiting("good", 2), waiting("small", 1, age=-1))))
    assert isinstance(decisions["job_bad"], Keep)
    assert isinstance(decisions["job_good"], Wait), "the slots of the other one were given away"


NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from(
        [
            5e-324,
            3e-308,
            1e-300,
            1e-5,
            1e-4,
            0.5,
            1,
            2,
            4096,
            4097,
            65_536,
            2**31,
            2**32,
            2**63,
            10**12,
            1e300,
            1.7e308,
            10**400,
            -(10**400),
        ]
    ),
)
FIELDS: dict[str, tuple[str, ...]] = {
    "workers": ("initial", "min", "max", "standby"),
    "resources_per_worker": ("cpu", "gpu", "memory"),
    "batch": ("global_size", "num_microbatches"),
    "checkpoint": ("every", "every_steps", "keep_last"),
    "restart": ("max_restarts",),
    "limits": ("max_duration", "stop_grace", "hang_timeout", "queue_timeout"),
    "scheduling": ("priority",),
}
SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        part: st.fixed_dictionaries({}, optional=dict.fromkeys(names, NUMBERS)) for part, names in FIELDS.items()
    },
)


def view_of(spec: JobSpec) -> View:
    stored: dict[str, Any] = spec_to_json(spec)
    resources = stored["resources_per_worker"]
    shape = Shape(resources["cpu"], resources["gpu"], resources.get("memory") or 0)
    job = waiting(
        "any",
        spec.workers.min,
        spec.workers.initial,
        max_workers=spec.workers.upper,
        standby=spec.workers.standby,
        shape=shape,
        num_microbatches=spec.num_microbatches,
        autoscale="capacity",
        priority=spec.scheduling.priority,
    )
    return View((cluster(8, 64, gpus=8, memory=2**63),), (), (job,))


@settings(max_examples=settings.default.max_examples * 3, deadline=None)
@given(sections=SECTIONS, seed=NUMBERS | st.just(0))
def test_a_spec_of_any_numbers_is_refused_or_decided(sections: dict[str, Any], seed: float) -> None:
    try:
        spec = parse_spec({"name": "any", "recipe": "image-classifier", "seed": seed, **sections})
    except SpecError:
        return
    assert spec.num_microbatches < 2**31
    assert spec.batch.global_size < 2**31
    (decision,) = decide(view_of(spec), datetime(2026, 2, 1, tzinfo=UTC))
    assert decision.because


def test_numbers_at_their_bounds_are_taken() -> None:
    """Else the test above could pass by refusing all."""
    spec = parse_spec(
        {
            "name": "wide",
            "recipe": "image-classifier",
            "workers": {"min": 4096, "max": 4096, "initial": 4096},
            "resources_per_worker": {"cpu": 0.0001, "memory": 2**50},
            "batch": {"global_size": 10**9, "num_microbatches": 65_536},
            "restart": {"max_restarts": 10**6, "backoff": {"factor": 1000}},
        }
    )
    (decision,) = decide(view_of(spec), NOW)
    assert isinstance(decision, Start)
    job = view_of(spec).waiting[0]
    assert isinstance(job, Waiting)
    assert decision.workers == 4096
