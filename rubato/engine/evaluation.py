"""Evaluation shared out over the workers, with the same bits whatever their number.

The data is cut into fixed chunks; chunk values are summed in float64 in the order of the chunks. A chunk is computed by
one worker; when workers are lost only chunks that nobody holds are computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rubato.data.fetch import Collate, fetch, validate_dataset
from rubato.data.prefetch import Key, Prefetcher
from rubato.data.randomness import capture, restore, seed_all
from rubato.data.source import Source
from rubato.engine.session import Session
from rubato.engine.settling import settle_states
from rubato.engine.step import to_device
from rubato.engine.table import fill_table
from rubato.errors import ModelError

KEPT_READERS = 2
"""Datasets for which processes that read ahead stay from one evaluation to the next: those of validation and test."""


@dataclass(frozen=True)
class Chunks:
    """A dataset in pieces of `size` samples, the last one maybe shorter; a `Source` that is the same in every step."""

    dataset: Any
    collate: Collate | None
    num_samples: int
    size: int
    seed: int

    def __len__(self) -> int:
        return -(-self.num_samples // self.size)

    def ids(self, chunk: int) -> range:
        """Samples of a chunk."""
        return range(chunk * self.size, min((chunk + 1) * self.size, self.num_samples))

    def read(self, step: int, v: int, count: int = 1) -> Any:
        """See `Source`."""
        return fetch(self.dataset, self.ids(v), collate=self.collate, seed=self.seed, epoch=0)


class Evaluator:
    """The evaluations of one run.

    Processes that read ahead stay from one to the next, because their start takes longer than many an evaluation; those
    of the dataset that was evaluated longest ago end where there are too many. Between evaluations they hold nothing.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._readers: dict[tuple[int, int, int, int], tuple[Chunks, Prefetcher]] = {}
        self._chunk = 0

    def evaluate(
        self, dataset: Any, fn: Callable[..., Any], batch: int, collate: Collate | None = None, prefetch: int = 0
    ) -> float:
        """Mean of `fn` over the dataset; all workers must call it at the same place.

        Args:
            fn: called with a batch (its parts, where it is a tuple or list), returns the mean value over it.
            batch: samples in a chunk, >= 1.
            prefetch: processes that read chunks ahead, each with a copy of the dataset as it was first seen.
        Returns: the mean over all samples, equal on every worker.
        Raises:  ModelError: fn returns no number, or the dataset cannot be given to processes.
        """
        num_samples = validate_dataset(dataset)
        if batch < 1:
            raise ModelError(f"run.evaluate needs batch >= 1, got {batch}")
        session = self._session
        settle_states(session)
        chunks = Chunks(dataset, collate, num_samples, batch, session.spec.seed)
        source = self._reader(chunks, prefetch) if prefetch else chunks
        step, ordinal = session.completed.key
        table = torch.full((len(chunks),), float("nan"), dtype=torch.float64)
        networks = session.state.networks()
        modes = [(module, module.training) for network in networks for module in network.modules()]
        random_state = capture()
        try:
            for network in networks:
                network.eval()
            merged = fill_table(session, (step, ordinal + 1), table, lambda chunk: self._value(source, fn, chunk))
        finally:
            for module, mode in modes:
                module.training = mode
            restore(random_state)
            if isinstance(source, Prefetcher):
                source.rest()
        total = 0.0
        for chunk, value in enumerate(merged.tolist()):
            total += value * len(chunks.ids(chunk))
        return total / num_samples

    def close(self) -> None:
        """End the processes that read ahead."""
        for _, reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _value(self, source: Source, fn: Callable[..., Any], chunk: int) -> float:
        """`fn` over one chunk. A NaN is told as infinity: in the table NaN means that nobody has computed the chunk."""
        session, self._chunk = self._session, chunk
        batch = to_device(source.read(0, chunk), session.device)
        seed_all(session.spec.seed, session.step, "evaluate", chunk)
        with torch.no_grad():
            value = fn(*batch) if isinstance(batch, (tuple, list)) else fn(batch)
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"run.evaluate: fn must return the mean over the batch as one number, got {value!r}"
            ) from error
        return number if number == number else float("inf")

    def _reader(self, chunks: Chunks, processes: int) -> Prefetcher:
        """What reads these chunks ahead, from an evaluation before where there was one."""
        key = (id(chunks.dataset), id(chunks.collate), chunks.num_samples, chunks.size)
        found = self._readers.pop(key, None)
        while found is None and len(self._readers) >= KEPT_READERS:
            _, oldest = self._readers.pop(next(iter(self._readers)))
            oldest.close()
        if found is None:

            def upcoming() -> Iterator[Key]:
                return ((0, chunk, 1) for chunk in range(self._chunk, len(chunks), self._session.world))

            reader = Prefetcher(
                chunks,
                processes,
                upcoming,
                tell=self._session.tell,
                waits=lambda: self._session.control.stage("evaluate"),
                describe=lambda key: f"chunk {key[1]} of an evaluation",
            )
            found = chunks, reader  # the chunks keep the dataset alive, whose id is the key
        self._readers[key] = found
        return found[1]
