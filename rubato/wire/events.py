"""The kinds of facts in a job's event log. Every event also carries a sentence for people, and its step."""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """What happened. The comment names the keys of `data`."""

    # Written by the service.
    SUBMITTED = "job.submitted"  # by, cloned_from
    STATUS = "job.status"  # from, to, reason
    UPDATED = "job.updated"  # by, changes {path: {from, to}}, from_next_attempt [path]
    SCALE_REQUESTED = "job.scale_requested"  # from, to, by
    PAUSE_REQUESTED = "job.pause_requested"  # by, force
    RESUME_REQUESTED = "job.resume_requested"  # by
    CANCEL_REQUESTED = "job.cancel_requested"  # by, force, grace_seconds
    CHECKPOINT_REQUESTED = "job.checkpoint_requested"  # by, request
    DRAIN_REQUESTED = "worker.drain_requested"  # worker_id, number, by; node: the one that is drained, if that is why
    KILL_REQUESTED = "worker.kill_requested"  # worker_id, number, by
    GRANTED = "job.granted"  # from, to, from_standby, to_standby: workers that the scheduler gives
    PREEMPTED = "job.preempted"  # by: the job that needs the slots, where it lies in the same project
    DEADLINE_EXCEEDED = "job.deadline_exceeded"  # seconds
    QUOTA_REACHED = "quota.reached"  # what (logs, metrics), limit: further ones are dropped, the job goes on
    ATTEMPT_ACQUIRED = "attempt.acquired"  # attempt, node, pid
    RESTORED = "service.restored"  # attempt: those up to it no longer count
    # Reported by the controller.
    ATTACHED = "controller.attached"  # workers: how many living workers it took over
    CAPACITY_WAITING = "capacity.waiting"  # wanted, granted
    WORKER_STARTED = "worker.started"  # worker_id, node, pid
    WORKER_READY = "worker.ready"  # worker_id, seconds
    WORKER_UNLIKE = "worker.unlike"  # worker_id: its processor is of another kind, so that bits may differ
    WORKER_LOST = "worker.lost"  # worker_id, rank, exit_code, signal, cause, traceback,
    # last_output: its last lines; hang: where it stood, of one that was fenced because it stood still
    WORKER_LEFT = "worker.left"  # worker_id, rank
    GENERATION_FORMED = "generation.formed"  # written once the first step of the new generation has committed:
    # generation, cause (start, scale_up, scale_down, recovery, replace, restart, rebalance), workers, from_workers,
    # step (the first one trained in it), paused_seconds (gap between the last commit before and the first after, less
    # the median step), redone_microbatches, members [{worker_id, rank}]
    CHANGE_FAILED = "change.failed"
    # generation, cause, joining [worker_id], times: in a row, seconds: until it is tried again; null: it is not
    REBALANCED = "rebalanced"
    # worker_id, rank: of the slow one; microbatches and milliseconds (each) by worker, gain: share of a step's compute
    CHECKPOINT_COMMITTED = "checkpoint.committed"
    # checkpoint_id, step, bytes, seconds, stall_seconds, metrics, files [{name, bytes, sha256}]
    CHECKPOINT_DELETED = "checkpoint.deleted"  # checkpoint_id; by, where a person did it through the service
    CHECKPOINT_PINNED = "checkpoint.pinned"  # checkpoint_id, by; written by the service, also what follows
    CHECKPOINT_UNPINNED = "checkpoint.unpinned"  # checkpoint_id, by
    CHECKPOINT_FAILED = "checkpoint.failed"  # step, cause, times: failed so, with this one, since it was last told
    CHECKPOINT_CORRUPT = "checkpoint.corrupt"  # checkpoint_id, cause
    ARITHMETIC_CHANGED = "arithmetic.changed"
    # checkpoint_id: training goes on from it; before, now: versions and processors
    CODE_CHANGED = "code.changed"  # checkpoint_id: training goes on from it; before, now: digests of the program
    UNREGISTERED = "state.unregistered"  # things: classes of what changes training and is not in the state
    LOSS_MISSING = "loss.missing"  # a microbatch had gradients, but no step.backward that tells its loss
    RESTARTING = "job.restarting"  # restarts, seconds, cause
    NON_FINITE = "non_finite"  # step
    KEPT_LOST = "gradient.lost"
    # norm: at most; share: of what all workers had kept back, by those that were lost, or of what a checkpoint had
    STREAM_REOPENED = "stream.reopened"  # worker_id; samples come at least once
    PREFETCH_LOST = "prefetch.lost"  # worker_id
    PREFETCH_FAILED = "prefetch.failed"  # worker_id
    PREFETCH_OFF = "prefetch.off"  # worker_id
    DIVERGED = "diverged"  # step, digests, agreed_step: up to where the states are known to be equal; distrusted
