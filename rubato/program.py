"""Running a training program: settings that make it reproducible, and `rubato.main` for one worker alone."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from rubato.allocator import keep_freed_memory
from rubato.checkpoint.due import due_s, within
from rubato.checkpoint.storage import Folder, open_folder
from rubato.code_digest import ProgramCode
from rubato.data.prefetch_process import PREFETCH_VARIABLE
from rubato.data.randomness import seed_all
from rubato.engine.control import Control
from rubato.engine.coordinator.orders import CheckpointFound, CommitManifest, Emit, ManifestCommitted
from rubato.engine.session import Session
from rubato.entrypoint import load_function
from rubato.errors import CheckpointError, EntrypointError, UserError
from rubato.launch.archive import ArchiveTerms, StorageArchive, check_root, check_terms, job_terms
from rubato.launch.claim import Claim, describe_former, describe_taken
from rubato.recipes import find_recipe
from rubato.run import Run
from rubato.wire import worker as wire
from rubato.wire.batch import BatchSpec
from rubato.wire.cluster import MetricRow
from rubato.wire.events import EventKind
from rubato.wire.settings import why_empty
from rubato.wire.spec import JobSpec, WorkersSpec, spec_to_json
from rubato.wire.storage import parse_storage

CHECKPOINT_EVERY_S = 30.0

TrainFunction = Callable[[Run], Any]


def prepare_torch(spec: JobSpec) -> torch.device:
    """Set up this process: all that the bits depend on, unless the job gives them up. Returns the device to use."""
    keep_freed_memory()
    torch.set_num_threads(max(1, int(spec.resources_per_worker.cpu)))
    if spec.reproducible:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    # Filling every torch.empty costs more than a reduction does, and no kernel here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not spec.reproducible
    # torch.compile: code for each of the few sizes of a microbatch, not for sizes in general from the second one on,
    # which would depend on what this process happened to see. Optimizers load this module anyhow.
    torch._dynamo.config.automatic_dynamic_shapes = False
    if not spec.wants_cuda:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "the spec asks for CUDA, but this worker sees no GPU; set device: cpu or resources_per_worker.gpu"
        )
    return torch.device("cuda", 0)


def load_entrypoint(spec: JobSpec) -> tuple[TrainFunction, ProgramCode]:
    """The training function that the spec names, and the program's code.

    Raises:
        EntrypointError: the file, module or function is not there.  Whatever the user's module raises on import.
    """
    if spec.recipe is not None:
        target, name = find_recipe(spec.recipe).module, "train"
    else:
        target, _, name = (spec.entrypoint or "").partition(":")
        name = name or "train"
    function, module = load_function(target, name)
    return _accepting_run(function, f"{target}:{name}"), ProgramCode(module)


def _accepting_run(function: Callable[..., Any], where: str) -> TrainFunction:
    """The function, or one of the run for a Horovod script's, which takes none."""
    try:
        takes_run = bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # not every callable tells
        return function
    if takes_run:
        return function
    if "rubato.hvd" not in sys.modules:
        raise EntrypointError(
            f"{where} takes no argument; Rubato calls it with the run: `def train(run): ...`. A script for Horovod "
            "needs `import rubato.hvd as hvd` in place of its own import"
        )
    return importlib.import_module("rubato.hvd.script").as_program(function)  # type: ignore[no-any-return]


def main(train: TrainFunction, arguments: Sequence[str] | None = None) -> None:
    """Train with one worker in this process, without service or cluster: `python train.py`.

    Flags: --config KEY=VALUE (repeatable), --batch, --num-microbatches, --seed, --checkpoint-dir; as in a job spec.
    With a checkpoint folder (or s3://BUCKET/PREFIX) that holds a checkpoint, training goes on from it.
    """
    if PREFETCH_VARIABLE in os.environ:
        raise EntrypointError(
            "a prefetch process imported the program to read its dataset, and that called rubato.main: put the call "
            'under `if __name__ == "__main__":`'
        )
    flags = _parse(arguments)
    try:
        batch = BatchSpec(flags.batch, flags.num_microbatches)
        spec = JobSpec(
            name="local",
            entrypoint="main.py:train",
            config=dict(flags.config),
            seed=flags.seed,
            batch=batch,
            workers=_workers_for(batch),
        )
        digest, step = _train_alone(train, spec, flags.checkpoint_dir)
    except (UserError, CheckpointError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(f"done: step {step}, digest {digest}", file=sys.stderr)


def _train_alone(train: TrainFunction, spec: JobSpec, storage: str | None) -> tuple[str, int]:
    folder = open_folder(parse_storage(storage).absolute()) if storage is not None else None
    if folder is None:
        return _lead_alone(train, spec, None, None)
    claim = within(due_s(), lambda: _look_at(folder, spec), f"looking at {folder}")
    with contextlib.closing(claim):
        if claim.former:
            print(describe_former(claim.former), file=sys.stderr)
        return _lead_alone(train, spec, folder, claim)


def _lead_alone(train: TrainFunction, spec: JobSpec, folder: Folder | None, claim: Claim | None) -> tuple[str, int]:
    device = prepare_torch(spec)
    attempt = claim.attempt if claim is not None else 1
    start = wire.Start(attempt, "local", "w1.1", "1.1", spec_to_json(spec), "127.0.0.1", str(folder) if folder else "")
    control = _Alone(start, spec, folder, claim)
    session = Session(control, spec, device, start.host, ProgramCode(sys.modules[train.__module__]).digest)
    try:
        if folder is not None:
            session.resume_from = control.find_latest()
        run = Run(session)
        seed_all(spec.seed, "setup")
        train(run)
        digest = run.finish()
        control.archive.finish()
        control.check()
    finally:
        control.archive.close(timeout_s=0.0)
    return digest, session.step


def _look_at(folder: Folder, spec: JobSpec) -> Claim:
    """Make sure that this run, and no other one, may go on there."""
    folder.prepare()
    check_root(folder)
    check_terms(folder, job_terms("local", spec))
    return Claim(folder, f"python {Path(sys.argv[0]).name}")


class _Alone(Control):
    """The controller of a program that runs alone: shows progress, commits its own checkpoints."""

    def __init__(self, start: wire.Start, spec: JobSpec, root: Folder | None, claim: Claim | None) -> None:
        super().__init__(start)
        self._spec = spec
        self._root, self._claim = root, claim
        self._taken = ""
        """Why this run may save no more; empty: it may."""
        terms = ArchiveTerms.of(start.job_id, root, spec, start.attempt)
        self.archive = StorageArchive(terms, self._take, self._is_taken)
        self._answers: SimpleQueue[CheckpointFound | ManifestCommitted] = SimpleQueue()
        self._shown_at = 0.0
        self._samples = self._seconds = 0.0
        """Since the last line that was shown."""
        self._saved_at = time.monotonic()
        self._is_saving = False
        """A checkpoint was asked for, and it is not known what became of it."""

    def say(self, message: wire.Message) -> None:
        """Act on what a controller would."""
        match message:
            case wire.Committed(rows=rows):
                for row in rows:
                    self._show(row)
                self.rows.clear()
                self.check()
                self._ask_for_checkpoint()
            case wire.StripeWritten():
                self._commit(message)
            case wire.StripeFailed(step=step, cause=cause):
                self._skipped(step, cause)
            case wire.Notice(message=text):
                print(text, file=sys.stderr)
            case _:
                pass

    def check(self) -> None:
        """Raises:  UserError: the checkpoints are another run's now."""
        if self._taken:
            raise UserError(self._taken)

    def _is_taken(self) -> bool:
        taker = self._claim.taken_by() if self._claim is not None else ""
        if taker and self._root is not None:
            self._taken = describe_taken(self._root, taker)
            self._answers.put(CheckpointFound(unusable=self._taken))  # whoever looks for one finds no other answer
        return bool(taker)

    def find_latest(self) -> Folder | None:
        """The newest checkpoint that holds; looked for until the storage answers, or somebody interrupts it.

        Raises:
            CheckpointError: those that are there do not hold.
        """
        self.archive.find()
        found = self._answers.get()
        assert isinstance(found, CheckpointFound)
        for name, cause in found.corrupt:
            print(f"checkpoint {name} failed its check and was passed over: {cause}", file=sys.stderr)
        if found.unusable:
            raise CheckpointError(found.unusable)
        if not found.folder:
            return None
        folder = open_folder(found.folder)
        print(f"going on from checkpoint {folder.name} (step {found.step})", file=sys.stderr)
        return folder

    def _take(self, event: Any) -> None:
        """What the archive posts, from its threads."""
        if not isinstance(event, Emit):
            self._answers.put(event)
        elif event.kind == EventKind.CHECKPOINT_FAILED.value:
            print(event.message, file=sys.stderr)

    def _ask_for_checkpoint(self) -> None:
        moment = time.monotonic()
        is_due = self._spec.checkpoint.every_steps is None and moment - self._saved_at >= CHECKPOINT_EVERY_S
        if is_due and not self._is_saving:
            self._saved_at, self._is_saving = moment, True
            self.checkpoint_request += 1

    def _show(self, row: MetricRow) -> None:
        moment = time.monotonic()
        self._samples += row.values.get("samples", 0.0)
        self._seconds += row.values.get("step_seconds", 0.0)
        extra = {key: value for key, value in row.values.items() if key not in _USUAL}
        if moment - self._shown_at < 1.0 and not extra:
            return
        self._shown_at = moment
        values = "".join(f"  {key} {value:.4g}" for key, value in extra.items())
        speed = self._samples / self._seconds if self._seconds else 0.0
        self._samples = self._seconds = 0.0
        loss = row.values.get("loss", float("nan"))
        print(f"step {row.step}  loss {loss:.4f}  {speed:.0f} samples/s{values}", file=sys.stderr)

    def _commit(self, part: wire.StripeWritten) -> None:
        """In the thread that wrote it, so that an end that waits for that waits for the manifest, too."""
        self.archive.commit(CommitManifest(part.folder, part.step, part.generation, part.files, part.terms))
        while True:
            match self._answers.get():
                case ManifestCommitted(folder=folder, error=error) if folder == part.folder:
                    break
                case _:  # what was given up has come to its end
                    pass
        if error:
            self._skipped(part.step, error)
        self._is_saving = False

    def _skipped(self, step: int, cause: str) -> None:
        print(f"the checkpoint of step {step} was skipped: {cause}", file=sys.stderr)
        self._is_saving = False


_USUAL = frozenset(
    {"loss", "samples", "step_seconds", "samples_per_second", "compute_seconds", "data_seconds", "epoch"}
)


def _workers_for(batch: BatchSpec) -> WorkersSpec:
    """The bounds that an ordinary job has, so that `auto` cuts the batch as it would there; fewer for a small batch."""
    pieces = batch.global_size if batch.num_microbatches == "auto" else batch.num_microbatches
    return WorkersSpec(max=max(1, min(WorkersSpec().upper, pieces)))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train with one worker in this process.")
    defaults = BatchSpec()
    parser.add_argument("--config", action="append", default=[], type=_pair, metavar="KEY=VALUE")
    parser.add_argument("--batch", type=int, default=defaults.global_size, help="samples in one step")
    parser.add_argument("--num-microbatches", type=_microbatches, default=defaults.num_microbatches)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoint-dir", metavar="FOLDER|URI", help="keep checkpoints here, and go on from the newest"
    )
    return parser.parse_args(arguments)


def _pair(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    if not value:
        raise argparse.ArgumentTypeError(why_empty(f"config.{key}"))
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def _microbatches(text: str) -> Any:
    return text if text == "auto" else int(text)
