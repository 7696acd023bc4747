"""Whether a worker computes the same as the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rubato.engine.coordinator.orders import Terms
from rubato.engine.coordinator.roster import WorkerView
from rubato.wire.worker import Standby

_NAMES = {"device": "device", "gpu": "GPU", "precision": "precision of float32"}
"""Of what must be equal for equal bits, among what a worker says of its arithmetic."""


def decide_mismatch(worker: WorkerView, told: Standby, all_workers: Iterable[WorkerView], terms: Terms) -> str:
    """Why this worker cannot train with the others, and what to do; empty: it can.

    Without equal bits to keep, only what no group can be made of is refused: another type of device. Where each worker
    computes by itself what all take for the sum, all must compute alike.
    """
    names, advice = _NAMES if terms.reproducible else {"device": _NAMES["device"]}, _ADVICE
    if terms.alike_for:
        names = {**_NAMES, "cpu": "kind of processor"} if told.arithmetic.get("device") == "cpu" else _NAMES
        advice = {"device": _ADVICE["device"]}
    for other, known in _others(worker, all_workers):
        if known.code_digest != told.code_digest:
            return f"its code or library versions differ from those of {other.worker_id}"
        if known.layout_digest != told.layout_digest:
            return f"the names, shapes or types of its state differ from those of {other.worker_id}"
        for key, name in names.items():
            mine, theirs = told.arithmetic.get(key), known.arithmetic.get(key)
            if mine and theirs and mine != theirs:
                return f"its {name} is {mine}, that of {other.worker_id} is {theirs}: " + (
                    advice.get(key) or _ADVICE_FOR_ALIKE.format(terms.alike_for)
                )
    return ""


_ADVICE = {
    "device": "set device: cpu or device: cuda, and give all workers what it needs",
    "gpu": "their bits would differ; ask for one model (resources_per_worker.accelerator_type), or give equal bits up "
    "(reproducible: false)",
    "precision": "their bits would differ; set it in train, by nothing that differs between workers",
}
_ADVICE_FOR_ALIKE = (
    "with {} each would go on with weights of its own; run the job on nodes of one kind, or use another "
    "aggregation.compression.method"
)


def describe_other_processor(worker: WorkerView, told: Standby, all_workers: Iterable[WorkerView]) -> str:
    """What to tell where a worker's processor is of another kind than another's; empty: nothing.

    It is told and not refused: libraries choose their kernels by it, but whether bits differ depends on the model.
    Where they do, the audits of joiners see it.
    """
    mine = told.arithmetic.get("cpu")
    for other, known in _others(worker, all_workers):
        theirs = known.arithmetic.get("cpu")
        if mine and theirs and mine != theirs:
            return (
                f"{worker.worker_id} computes on another kind of processor ({mine}) than {other.worker_id} ({theirs}): "
                "the last bits of its results may differ; where they must not, run the job on nodes of one kind"
            )
    return ""


def _others(worker: WorkerView, all_workers: Iterable[WorkerView]) -> Iterable[tuple[WorkerView, Standby]]:
    for other in all_workers:
        if other is not worker and other.standby is not None and not other.doom:
            yield other, other.standby
