"""What people want done to single workers of a Ray Train job. Pure.

The drain of a node is a restart of the whole group elsewhere; nothing else is done to single workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from jobs.ray_train import sentences
from rubato.engine.coordinator import Answer
from rubato.wire.cluster import ActionAnswer, ActionState, WorkerAction


class Actions:
    """Those that are listed, each answered once."""

    def __init__(self) -> None:
        self._answered: set[int] = set()
        self.drains: dict[int, WorkerAction] = {}
        """Under way: the group is to leave."""

    @property
    def hurry_s(self) -> list[float]:
        """Seconds that the drains leave."""
        return [one.within_s for one in self.drains.values() if one.within_s is not None]

    def take(
        self, listed: Sequence[WorkerAction], node_of: Callable[[str], str | None], avoided: Collection[str]
    ) -> list[Answer]:
        """Begin what can be done, and answer the rest.

        Args:
            node_of: the id of the node of a living worker.
            avoided: ids of the nodes that get no new workers.
        """
        by_number = {one.number: one for one in listed}
        self.drains = {number: by_number[number] for number in self.drains.keys() & by_number.keys()}
        answers = []
        for action in listed:
            if action.number in self._answered or action.number in self.drains:
                continue
            node = node_of(action.worker_id)
            if node is None:
                answers.append(self._answer(action, "gone", f"{action.worker_id} had ended before"))
            elif action.kind == "drain" and node in avoided:
                self.drains[action.number] = action
            else:
                answers.append(self._answer(action, "failed", sentences.refused_action(action.kind)))
        return answers

    def on_group_gone(self) -> list[Answer]:
        """Who was to leave has left."""
        done, self.drains = list(self.drains.values()), {}
        return [self._answer(one, "done", f"{one.worker_id} left with its group") for one in done]

    def _answer(self, action: WorkerAction, state: ActionState, text: str) -> Answer:
        self._answered.add(action.number)
        return Answer(ActionAnswer(action.number, state, text))
