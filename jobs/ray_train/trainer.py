"""Ray Train's trainer, without the one of its helpers that does harm here."""

from __future__ import annotations

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback


class Trainer(TorchTrainer):
    """It starts no cleaner: a detached actor that asks the dashboard whether the run has ended, and, where there is
    none, stays for ever. The placement group belongs to the driver's Ray job, with which Ray removes it.
    """

    def _create_default_callbacks(self) -> list[Any]:
        created = super()._create_default_callbacks()  # type: ignore[misc]  # mypy sees the first version
        return [one for one in created if not isinstance(one, PlacementGroupCleanerCallback)]
