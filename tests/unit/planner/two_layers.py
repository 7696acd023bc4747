"""A model of two layers, links, and what is planned with them."""

from __future__ import annotations

from typing import Any

from rubato.planner.choose import Plan, plan
from rubato.planner.links import Link
from rubato.planner.profile import Layer, Profile
from rubato.wire.spec import JobSpec, parse_spec

MODEL = Profile(
    (
        Layer("first", ((512, 256), (512,)), 1e-4, 2e-4),
        Layer("last", ((2048, 512), (2048,)), 1e-4, 2e-4),
    ),
    start_s=1e-4,
    update_s=1e-9,
    codec_s=dict.fromkeys(("fp16", "bf16", "powersgd", "topk", "gtopk", "onebit", "sketch", "sketched_sgd"), 1e-9),
    state_bytes=20_000_000,
)
FAST, SLOW = Link(1e-6, 1e12), Link(1e-3, 1e6)


def spec_of(**fields: Any) -> JobSpec:
    return parse_spec(
        {
            "name": "a",
            "entrypoint": "train.py:train",
            "workers": {"max": 8},
            "batch": {"global_size": 256, "num_microbatches": 16},
            **fields,
        }
    )


def planned(link: Link, profile: Profile = MODEL, **fields: Any) -> Plan:
    return plan(profile, link, spec_of(**fields))
