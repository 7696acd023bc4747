"""`Run`: what user code holds.

def train(run: rubato.Run) -> None:
    model, optimizer = Net(), ...
    run.prepare(model=model, optimizer=optimizer, dataset=train_set)
    for step in run.steps():
        for x, y in step:
            step.backward(loss_fn(model(x), y))
        optimizer.step()
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from rubato.data.fetch import Collate, validate_dataset
from rubato.data.order import BatchPlan, RoundPlan
from rubato.data.prefetch import Prefetcher
from rubato.data.source import MapSource, Source
from rubato.data.stream import ShardedStream, StreamPlan, StreamSource
from rubato.engine.backups import backed_of
from rubato.engine.ending import seal
from rubato.engine.epoch import Epoch
from rubato.engine.evaluation import Evaluator
from rubato.engine.flat import FlatLayout
from rubato.engine.noise import RATE, LearningRate, NoiseWatch
from rubato.engine.noise import REGISTERED as NOISE
from rubato.engine.replicas import Replicas, replicas_of
from rubato.engine.separation import Separation, separation_of
from rubato.engine.served import Served
from rubato.engine.serving import Serving, serving_of
from rubato.engine.session import Session
from rubato.engine.state import Place, TrainingState
from rubato.engine.step import Step
from rubato.engine.stopping import agree, stop
from rubato.engine.unregistered import unregistered
from rubato.engine.upcoming import upcoming
from rubato.engine.updates import Weights, refuse_within
from rubato.engine.warmup import warm_up
from rubato.errors import GenerationLost, ModelError, SpecMismatch
from rubato.strategies.probe import probe
from rubato.wire.cluster import MetricRow
from rubato.wire.events import EventKind
from rubato.wire.units import utc_timestamp

MAX_LOGGED = 1_000
"""Names in a row, besides those of the engine."""


class Run:
    """One training program's view of its job; the same object alone, under `rubato run` and on a cluster."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evaluator = Evaluator(session)
        self._prepared: dict[str, Any] | None = None
        self._registered: dict[str, Any] = {}
        self._step: Step | None = None
        self._noise: NoiseWatch | None = None
        self._rate: LearningRate | None = None
        self._replicas: Replicas | None = None
        self._rounds: Served | Separation | None = None
        self._weights: Weights | None = None
        self._is_started = False
        self._digest: str | None = None
        self.config: dict[str, Any] = dict(session.spec.config)
        """The job's `config`."""
        self.device: torch.device = session.device
        """Where microbatches come, and where the model belongs."""
        self.batch_size: int = session.spec.batch.global_size
        """Samples in one step of the whole job."""
        self.state: dict[str, Any] = {}
        """Small values of the program's own (numbers, strings, tensors): saved, and equal on every worker."""

    # --- what the program says first ----------------------------------------------------------------------------------

    def prepare(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        collate: Collate | None = None,
        prefetch: int = 0,
    ) -> None:
        """Say what is trained. Call it once, before `steps`.

        Args:
            model: a module, or several by name.
            optimizer: one, or several by name; one reduction a step serves all.
            dataset: map-style (`len(dataset)` samples, read by index), or a `rubato.data.ShardedStream`.
            scheduler: anything with `state_dict`; saved and given to joiners.
            scaler: a GradScaler; `step.backward` scales by it.
            collate: list of samples -> batch; default: `torch.utils.data.default_collate`.
            prefetch: processes of each worker that read samples ahead, each with a copy of the dataset; 0: they are
                read by the training process when they are needed. The bits do not depend on it.
        Raises:
            ModelError: something that cannot be trained; the message says what to do.
        """
        if self._prepared is not None:
            raise ModelError("run.prepare was called twice; give all models and optimizers in one call, as dicts")
        models = dict(model) if isinstance(model, Mapping) else {"": model}
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
        for name, one in models.items():
            if not isinstance(one, nn.Module):
                raise ModelError(f"{_called('model', name)} is a {type(one).__name__}, not a torch.nn.Module")
        for name, some in optimizers.items():
            if not isinstance(some, torch.optim.Optimizer):
                raise ModelError(
                    f"{_called('optimizer', name)} is a {type(some).__name__}, not a torch.optim.Optimizer"
                )
        _check_device(models, self.device)
        if not isinstance(dataset, ShardedStream):
            validate_dataset(dataset)
        elif prefetch:
            raise ModelError("prefetch reads datasets that are read by index ahead, a ShardedStream not: leave it out")
        _check_prefetch(prefetch)
        for name, thing in (("scheduler", scheduler), ("scaler", scaler)):
            if thing is not None:
                self.register(name, thing)
        self._prepared = {
            "models": models,
            "optimizers": optimizers,
            "dataset": dataset,
            "collate": collate,
            "prefetch": prefetch,
            "scaler": scaler,
        }

    def register(self, name: str, thing: Any) -> None:
        """Add to the state anything that influences training: saved, given to joiners, compared.

        Args:    thing: has `state_dict()` and `load_state_dict(state)`.
        Raises:  ModelError: it has not, the name is taken, or training has begun.
        """
        if self._is_started:
            raise ModelError(f"run.register({name!r}) came after run.steps() began; register before it")
        if name in self._registered:
            raise ModelError(f"{name!r} is registered already; choose another name")
        if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
            raise ModelError(f"{name!r} ({type(thing).__name__}) has no state_dict and load_state_dict; add them")
        self._registered[name] = thing

    # --- the loop -----------------------------------------------------------------------------------------------------

    def steps(self, epochs: int | None = None, steps: int | None = None) -> Iterator[Step]:
        """The job's steps, from the one it stands at (also for a worker that joins late) to the last.

        Args:
            epochs: passes over the dataset; default: `config.epochs`, else 1.
            steps: optimizer updates; wins over epochs; default: `config.steps`.
        Raises:
            ModelError: nothing was prepared, or a step's microbatches were not gone through.
        """
        prepared = self._prepared
        if prepared is None:
            raise ModelError("call run.prepare(model=..., optimizer=..., dataset=...) before run.steps()")
        if self._is_started:
            raise ModelError("run.steps() was called twice; a job has one loop over its steps")
        self._is_started = True
        session = self._session
        source, plan = self._source(prepared["dataset"], prepared["collate"])
        if session.aggregation is not None:
            session.aggregation.check_optimizers(prepared["optimizers"].values())
            session.aggregation.check_registered(self._registered)
            self._registered[session.aggregation.registered] = session.aggregation
        if session.spec.batch.noise_every:
            self._registered[NOISE] = self._noise = NoiseWatch(session.spec)
        if session.spec.lr_scaling.rule != "none":
            self._registered[RATE] = self._rate = LearningRate(session.spec, self._noise, lambda: session.step)
            self._rate.attach(prepared["optimizers"].values())
        state = TrainingState(prepared["models"], prepared["optimizers"], self._registered, self.state)
        replicas = self._replicas = replicas_of(session.spec, state, prepared["scaler"])
        serving = serving_of(session.spec, state, replicas)
        backed = backed_of(session.spec, state, replicas)
        self._rounds = serving or backed or separation_of(session.spec, state, replicas)
        refuse_within(
            state.optimizers.values(),
            lambda: session.present_microbatch is not None and not (replicas is not None and replicas.is_updating),
        )
        places: list[Place] = [*state.buffers, *(replicas.places if replicas is not None else ())]
        places += [serving.log] if serving is not None else []
        flat = FlatLayout(state.named_parameters(), places, has_notes=self._noise is not None)
        state.encode()  # what cannot be saved is told now, not at the first checkpoint
        total = self._total_steps(plan, epochs, steps)
        with self._reading_ahead(source, prepared["prefetch"]) as ahead:
            if not session.control.is_alone:
                warm_up(state, source, session.device)
            forgotten = unregistered([*prepared["optimizers"].values(), *self._registered.values()])
            session.start(state, flat, plan, total)
            if self._rate is not None:
                self._rate.begin()
            self._weights = Weights(state) if replicas is None else None
            if forgotten:
                session.notice(EventKind.UNREGISTERED, _advice(forgotten), things=forgotten)
            yield from self._go_through(ahead, prepared["scaler"])
        self._step = None
        agree(session)
        seal(session)
        self._digest = state.digest()

    def epochs(self, epochs: int | None = None, steps: int | None = None) -> Iterator[Epoch]:
        """The same steps, epoch by epoch: for what is done once behind each pass over the dataset.

        for epoch in run.epochs(10):
            for step in epoch:
                ...
            run.log(accuracy=run.evaluate(test_set, accuracy))  # in the row of the epoch's last step

        Args:
            epochs, steps: as of `steps`; where the steps end amid an epoch, it is shorter.
        Raises:
            ModelError: as `steps`; or an epoch's steps were not gone through.
        """
        remaining = self.steps(epochs, steps)
        for first in remaining:
            epoch = Epoch(first, remaining)
            yield epoch
            epoch.check_done()

    def stop(self) -> None:
        """End the steps with the present one, as if there had never been more: it commits when the loop comes round.

        All workers must decide so in the same step, by a value that is equal on all of them: what `evaluate` returns,
        `state`, the step's index. Go on to the end of the loop body, without break. A run that goes on from the last
        checkpoint is over, too, unless it is to have another number of steps.

        Raises:
            ModelError: outside of the loop over `steps`, or inside the one over microbatches. On all workers, when the
                loop comes round: only some of them have called it.
        """
        if self._step is None:
            raise ModelError("run.stop belongs into the loop over run.steps(), which it ends")
        if self._step.microbatch is not None or not self._step.is_reduced:
            raise ModelError("run.stop belongs behind the loop over the step's microbatches: nothing is equal inside")
        stop(self._session)

    def _go_through(self, source: Source, scaler: Any) -> Iterator[Step]:
        session = self._session
        began = time.perf_counter()
        while session.step < session.total_steps:
            step = Step(session, source, scaler, self._noise, self._replicas, self._rounds, self._weights)
            self._step = step
            yield step
            step.check_reduced()
            ended = time.perf_counter()
            session.commit(self._row(step, ended - began))
            began = ended
            if session.step < session.total_steps:
                session.boundary()

    @contextlib.contextmanager
    def _reading_ahead(self, source: Source, processes: int) -> Iterator[Source]:
        if not processes:
            yield source
            return
        session = self._session

        def say(stage: str) -> None:
            session.control.stage(stage, microbatch=session.present_microbatch)

        with contextlib.closing(
            Prefetcher(
                source,
                processes,
                upcoming=lambda: upcoming(session),
                tell=session.tell,
                waits=lambda: say("prefetch"),
                reads=lambda: say("fetch"),
            )
        ) as ahead:
            yield ahead

    def _source(self, dataset: Any, collate: Collate | None) -> tuple[Source, BatchPlan]:
        """What is read, and how its samples fall into the steps."""
        spec, count = self._session.spec, self._session.num_microbatches
        size, local = spec.batch.global_size, spec.local_updates
        if not isinstance(dataset, ShardedStream):
            if not local.is_on:
                whole = BatchPlan(len(dataset), size, count, spec.seed)
                return MapSource(dataset, collate, whole), whole
            rounds = RoundPlan(len(dataset), size, count, spec.seed, local.sync_every)
            return MapSource(dataset, collate, rounds.pieces), rounds
        if local.is_on:
            raise SpecMismatch("a microbatch of a stream is read in one piece; leave local_updates out")
        plan = StreamPlan.of(spec.batch.global_size, count, spec.seed)
        stream = StreamSource(dataset, collate, plan, self._session.tell)
        self._registered["rubato.stream"] = stream
        return stream, plan

    def _total_steps(self, plan: BatchPlan, epochs: int | None, steps: int | None) -> int:
        steps = steps if steps is not None else self.config.get("steps") if epochs is None else None
        if steps is None:
            if isinstance(plan, StreamPlan):
                raise ModelError("a stream has no end and no epochs: say run.steps(steps=...), or steps in the config")
            epochs = epochs if epochs is not None else self.config.get("epochs", 1)
            steps = plan.steps_per_epoch * _whole("epochs", epochs)
        return _whole("steps", steps)

    def _row(self, step: Step, seconds: float) -> MetricRow:
        session = self._session
        decision = session.decision
        assert decision is not None
        assert session.record is not None
        samples = session.plan.batch_size(step.index)
        values = {
            "loss": decision.loss,
            "samples": float(samples),
            "step_seconds": round(seconds, 6),
            "samples_per_second": round(samples / seconds, 3),
            "compute_seconds": round(session.compute_ns / 1e9, 6),
            "data_seconds": round(session.data_ns / 1e9, 6),
            "epoch": float(step.epoch),
            **(self._noise.told(step.index) if self._noise is not None else {}),
            **(self._rate.told(step.index) if self._rate is not None else {}),
            **(self._rounds.told_of_round() if isinstance(self._rounds, Serving) else {}),
            **self._take_logged(),
        }
        return MetricRow(step.index + 1, utc_timestamp(), session.record.number, session.computing, _finite(values))

    def _take_logged(self) -> dict[str, float]:
        logged = dict(self._session.rows.logged)
        self._session.rows.logged.clear()
        return logged

    # --- inside the loop, and after it --------------------------------------------------------------------------------

    def log(self, **metrics: float) -> None:
        """Add values to the row of the present step. Loss and throughput are logged by themselves.

        Raises:  ModelError: no number, or more than `MAX_LOGGED` names.
        """
        logged = self._session.rows.logged
        for name, value in metrics.items():
            try:
                logged[name] = float(value.detach() if isinstance(value, torch.Tensor) else value)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ModelError(f"run.log({name}=...) needs a number, got {value!r}") from error
        if len(logged) > MAX_LOGGED:
            raise ModelError(
                f"run.log was given {len(logged)} names in one step, and a row holds {MAX_LOGGED}: log what sums them "
                "up (the norm of a layer, not of each parameter)"
            )

    def evaluate(
        self,
        dataset: Any,
        fn: Callable[..., Any],
        batch: int = 256,
        collate: Collate | None = None,
        prefetch: int = 0,
    ) -> float:
        """Mean of `fn` over a dataset, shared out over the workers, with the same bits whatever their number.

        All workers must call it at the same place: after the loop over a step's microbatches, or after the last step.
        The model is in eval mode and without gradients meanwhile; random numbers are as before afterwards.

        Args:
            dataset: map-style.
            fn: called with a batch (its parts, where it is a tuple or list); returns the mean value over it. A NaN
                counts as infinity, so that the mean over all is infinite, too.
            batch: samples in one call.
            collate: list of samples -> batch.
            prefetch: processes of each worker that read batches ahead, each with a copy of the dataset as it was at the
                first call; they stay for the next evaluation of the same dataset. 0: batches are read in between.
        Raises:
            ModelError: fn returns no number, or the call is inside the loop over microbatches.
        """
        if not self._is_started:
            raise ModelError("run.evaluate belongs into or after the loop over run.steps()")
        if self._step is not None and self._step.microbatch is not None:
            raise ModelError("run.evaluate belongs after the loop over the step's microbatches, not inside it")
        _check_prefetch(prefetch)
        return self._evaluator.evaluate(dataset, fn, batch, collate, prefetch)

    def measure_links(self) -> dict[str, float]:
        """What the network between the workers of now carries.

        All workers must call it at the same place, after the loop over a step's microbatches. It takes some seconds.

        Returns: by name, seconds, bytes and bytes a second, for `run.log`: `rubato plan --links-of JOB` reads them.
            Empty where there is one worker only, where one is lost meanwhile, and in a step that was repaired.
        """
        session = self._session
        # Of a step that others have reduced, some may be beyond it: they would not answer.
        if session.comm is None or session.world == 1 or not session.reduced:
            return {}
        try:
            return probe(session.comm, session.comm.hosts, lambda: session.control.stage("update", session.step))
        except GenerationLost:  # the next step repairs it; nothing may be told over what is left meanwhile
            session.comm.bury()
            return {}

    @contextlib.contextmanager
    def long_phase(self, name: str) -> Iterator[None]:
        """Say that this takes long without being a hang: `with run.long_phase("export"): ...`."""
        control, leaf = self._session.control, self._session.present_microbatch
        before = control.present_stage
        control.stage("long_phase", microbatch=leaf)
        try:
            yield
        finally:
            control.stage(before, microbatch=leaf)

    def finish(self) -> str:
        """Called by the launcher when the program returned: wait for peers and controller.

        Returns: the digest of the state at the end of the steps.
        Raises:  ModelError: the program returned before its steps were done.
        """
        if self._digest is None:
            where = "before run.steps() was called" if not self._is_started else f"in step {self._session.step}"
            raise ModelError(
                f"the training program returned {where}; go through run.steps() to its end. To end early, call "
                "run.stop() in place of break or return: the loop ends by itself then, with a checkpoint"
            )
        self._evaluator.close()
        self._session.finish(self._digest, _finite(self._take_logged()))
        return self._digest


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Without those that JSON cannot tell."""
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _advice(forgotten: list[str]) -> str:
    names = ", ".join(forgotten)
    return (
        f"{names}: neither prepared nor registered, so a worker that joins and a run that goes on begin anew with it. "
        "Give it to run.prepare(scheduler=, scaler=), or to run.register(name, it)"
    )


def _called(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else kind


def _check_device(models: Mapping[str, nn.Module], device: torch.device) -> None:
    """One parameter on the device is enough: a model may be split over several, or leave a part on the CPU."""
    found = {parameter.device for model in models.values() for parameter in model.parameters()}
    if found and device not in found:
        there = ", ".join(sorted(map(str, found)))
        raise ModelError(
            f"microbatches come on {device}, and the model has its parameters on {there}: "
            "write model = model.to(run.device) before the optimizer is made"
        )


def _check_prefetch(count: Any) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ModelError(f"prefetch is the number of processes that read ahead, 0 or more, got {count!r}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ModelError(f"{name} must be a whole number of at least 1, got {value!r}")
    return value
