"""Checkpoints by the code of a job: its workers' stripes, the manifest, older ones cleared away.

Three of them are saved. Done in order, in one thread, every write is a place to crash at, and the k-th is always the
same one.
"""

import ctypes
import os
import signal
import threading
import traceback
from queue import SimpleQueue

import torch

from rubato.checkpoint.due import Lane
from rubato.checkpoint.manifest import JobTerms
from rubato.checkpoint.retention import Retention
from rubato.checkpoint.storage import open_folder
from rubato.checkpoint.stripes import read_state
from rubato.engine.coordinator.ledger import CheckpointLedger
from rubato.engine.coordinator.orders import CheckpointFound, CommitManifest, ManifestCommitted
from rubato.engine.saver import Saver
from rubato.launch import clearing
from rubato.launch.archive import ArchiveTerms, StorageArchive, next_attempt
from rubato.wire import worker as wire

clearing.FINISH_S = 60.0  # a machine that stands still for five seconds leaves something to be cleared away
TERMS = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)
STEPS = (10, 20, 30)
WORLD = 2
PR_SET_PTRACER = 0x59616D61


class State:
    """As much of a training state as a saver needs."""

    def __init__(self, step):
        self.step = step

    def encode(self):
        return {"step": self.step}, content_of(self.step)

    def state_dict_names(self):
        return {}


def content_of(step):
    """The tensors after so many steps."""
    return [torch.full((40,), float(step)), torch.arange(step, step + 30)]


def is_right(folder, manifest):
    """Whether a checkpoint holds what was saved."""
    document, tensors = read_state(folder, manifest.files)
    expected = content_of(manifest.step)
    is_equal = all(torch.equal(one, other) for one, other in zip(tensors, expected, strict=True))
    return is_equal and document["state"] == {"step": manifest.step}


class Job:
    """Two workers and their controller, as far as checkpoints go."""

    def __init__(self, root, kept=1, say=print):
        folder = open_folder(str(root))
        self.attempt = next_attempt(folder)
        self.say = say
        self.turn = threading.Lock()
        self.ledger = CheckpointLedger(None, request=0)
        self.answers = SimpleQueue()
        self.archive = StorageArchive(ArchiveTerms(TERMS, folder, Retention(kept), self.attempt), self.take)
        members = tuple(wire.Member(f"w{rank}", f"{self.attempt}.{rank}") for rank in range(WORLD))
        self.record = wire.GenerationRecord(self.attempt, 1, members, (0,), "", wire.Origin("fresh"), "start", 0)
        self.savers = [Saver(str(root), member.incarnation, self.hear) for member in members]

    def run(self, steps=STEPS):
        self.archive.find()
        self.say(f"found {self.answers.get().step}")
        for step in steps:
            for rank, saver in enumerate(self.savers):
                saver.save(State(step), self.record, rank, step=step, extra={}, metrics={"loss": 1 / step})
            self.answers.get()
        self.archive.finish()
        self.archive.close()

    def hear(self, message):
        """What a worker says."""
        with self.turn:
            if isinstance(message, wire.StripeFailed):
                if self.ledger.on_failed(message, 1):
                    self.tell(message.step, message.cause)
                return
            whole = self.ledger.on_written(message, 0.0)
        if whole is not None:
            order = CommitManifest(whole.folder, whole.step, whole.generation, whole.files, whole.terms)
            self.archive.commit(order)

    def take(self, event):
        """What the archive answers."""
        if isinstance(event, CheckpointFound):
            self.answers.put(event)
        elif isinstance(event, ManifestCommitted):
            with self.turn:
                self.ledger.on_manifest(event.folder)
            for saver in self.savers:
                saver.obey(wire.ForgetStripes(self.attempt, event.folder))
            self.tell(event.step, event.error)

    def tell(self, step, error):
        self.answers.put(error)
        self.say(f"failed {step}: {error}" if error else f"committed {step}")


def do_in_order():
    """Lanes do at once what is put into them."""

    def put(lane, do, overdue, seconds, *, is_kept=False):
        try:
            do()
        except Exception:
            traceback.print_exc()

    Lane.put, Lane.wait = put, lambda lane, seconds=None: True


def run_traced(root, told, kept=1):
    """All of it in this process, which somebody traces from now on; what it tells goes into a file."""
    do_in_order()
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # anybody may
    os.kill(os.getpid(), signal.SIGSTOP)
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT)
    Job(root, kept, lambda line: os.write(descriptor, f"{line}\n".encode())).run()
