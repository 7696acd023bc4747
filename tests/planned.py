"""A model with layers to separate, ways to train it with several workers, and what the planner says of these."""

from __future__ import annotations

from math import prod
from typing import Any

from rubato.planner.choose import METHODS, plan
from rubato.planner.links import Link
from rubato.planner.options import Option
from rubato.planner.profile import Layer, Profile
from rubato.wire.spec import JobSpec

INPUTS, FRONT, HIDDEN, CLASSES = 64, 256, 512, 10
MODEL = f"""
from collections import OrderedDict

def model_of():
    front = torch.nn.Sequential(torch.nn.Linear({INPUTS}, {FRONT}), torch.nn.Tanh())
    hidden = torch.nn.Linear({FRONT}, {HIDDEN})
    head = torch.nn.Sequential(hidden, torch.nn.Tanh(), torch.nn.Linear({HIDDEN}, {CLASSES}))
    return torch.nn.Sequential(OrderedDict(front=front, head=head))
"""
_SHAPES = {
    "front.0": ((FRONT, INPUTS), (FRONT,)),
    "head.0": ((HIDDEN, FRONT), (HIDDEN,)),
    "head.2": ((CLASSES, HIDDEN), (CLASSES,)),
}
_NUMEL = sum(prod(shape) for shapes in _SHAPES.values() for shape in shapes)
PROFILE = Profile(
    tuple(Layer(name, shapes, 1e-6, 1e-6, shapes[0][1], shapes[0][0]) for name, shapes in _SHAPES.items()),
    state_bytes=3 * 4 * _NUMEL,  # weights, and two moments as Adam has them
    modules={"front": (INPUTS, FRONT), "head": (FRONT, CLASSES)},
    codec_s=dict.fromkeys(METHODS, 1e-9),  # else the planner takes none of them
)
UPDATES = 4
BATCH = {"global_size": 64 * UPDATES, "num_microbatches": 4}
_APART: dict[str, Any] = {"method": "layer_separation", "cut": "head"}
_LOCAL: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("local_sgd", "diloco", "synchronous", "asynchronous")},
    "streaming_diloco": {"method": "streaming_diloco", "fragments": 3},
    "layer_separation": _APART,
    **{f"layer_separation, {packed}": {**_APART, "cut_format": packed} for packed in ("bf16", "int8")},
    "layer_separation, front bf16": {**_APART, "front_format": "bf16"},
    "layer_separation, two keepers": {**_APART, "keepers": 2},
    "layer_separation, two keepers, bf16": {**_APART, "keepers": 2, "cut_format": "bf16"},
    "layer_separation, two keepers, all bf16": {
        **_APART,
        "keepers": 2,
        "cut_format": "bf16",
        "front_format": "bf16",
    },
    "synchronous, a backup": {"method": "synchronous", "backups": 1},
    "asynchronous, bounded and damped": {"method": "asynchronous", "staleness": 1, "damping": True},
    "streaming_diloco, mixed": {"method": "streaming_diloco", "fragments": 3, "mix": 0.5},
    "streaming_diloco, delayed": {"method": "streaming_diloco", "mix": 0.5, "delay": 2},
}
WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "auto, in any order": {"reproducible": False},
    **{
        name: {
            "reproducible": local["method"] in ("local_sgd", "diloco"),
            "local_updates": {**local, "sync_every": UPDATES},
        }
        for name, local in _LOCAL.items()
    },
}
"""By name, of a job spec: those whose exchanges `tests.exchanges` does not play."""
FEWEST = {
    "layer_separation, two keepers": 4,
    "layer_separation, two keepers, bf16": 4,
    "layer_separation, two keepers, all bf16": 4,
    "synchronous, a backup": 3,
}
"""Workers that it takes."""
SHARE = 0.03
"""By how much what is sent may exceed what is planned: headers of messages and of packets, acknowledgements, votes."""
SLACK = 1e-4
"""By how much it may fall short of it: fragments are not all of one size."""


def planned(spec: JobSpec, profile: Profile = PROFILE) -> Option:
    """What the planner says of a job of a fixed number of workers."""
    (option,) = plan(profile, Link(1e-4, 1e9), spec).by_workers
    return option


def is_as_planned(sent: float, spec: JobSpec, more: float = 0.0) -> bool:
    """Whether the busiest worker has sent so many bytes in a step.

    With backup workers a server may send less: who is late for an update gets no weights of it.

    Args:    more: that it sends besides.
    """
    told = planned(spec).sent_bytes + more
    spared = spec.local_updates.backups * PROFILE.element_bytes * _NUMEL * (UPDATES - 1)
    return is_near(sent, told) or (told - spared) * (1 - SLACK) <= sent <= told


def is_near(sent: float, told: float) -> bool:
    """Whether so many bytes were sent as were told."""
    return told * (1 - SLACK) <= sent <= told * (1 + SHARE)
