"""What of a job spec has no meaning where Ray Train runs the program (`backend: ray_train`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rubato.wire.spec import JobSpec

Rule = tuple[bool, str, str]
"""(holds, field, message)"""


def ray_train_rules(spec: JobSpec) -> list[Rule]:
    """Fields that would silently do nothing: each may only have its default. None for another backend."""
    if spec.backend != "ray_train":
        return []
    return [*_program_rules(spec), *_batch_rules(spec), *_checkpoint_rules(spec), *_restart_rules(spec)]


def _program_rules(spec: JobSpec) -> list[Rule]:
    return [
        (spec.recipe is None, "recipe", "recipes are programs for Rubato; give the entrypoint of a train function"),
        (
            not spec.secrets,
            "secrets",
            "cannot be given to Ray Train's workers: Ray keeps the environment it starts them with in clear; "
            "have the program fetch them, or use backend: rubato",
        ),
        (
            spec.device == "auto",
            "device",
            "Ray Train uses a GPU where resources_per_worker.gpu is more than 0; leave it out",
        ),
        (spec.seed == 0, "seed", "the program seeds itself; give it a seed in config"),
        (
            spec.on_non_finite == "deliver",
            "on_non_finite",
            "the program handles its own gradients; leave it out",
        ),
    ]


def _batch_rules(spec: JobSpec) -> list[Rule]:
    cause = "the program cuts its own batch; give its size in config"
    default = type(spec.batch)()
    return [
        (spec.batch.global_size == default.global_size, "batch.global_size", cause),
        (spec.batch.num_microbatches == default.num_microbatches, "batch.num_microbatches", cause),
        (spec.workers.standby == 0, "workers.standby", "Ray Train keeps no spare workers; must be 0"),
        (
            spec.workers.autoscale != "goodput",
            "workers.autoscale",
            "goodput is not measured under Ray Train; use off or capacity",
        ),
    ]


def _checkpoint_rules(spec: JobSpec) -> list[Rule]:
    given, default = spec.checkpoint, type(spec.checkpoint)()
    cause = "the program decides when it reports a checkpoint; leave it out"
    return [
        (given.every == default.every, "checkpoint.every", cause),
        (given.every_steps is None, "checkpoint.every_steps", cause),
        (given.max_interval == default.max_interval, "checkpoint.max_interval", cause),
        (
            given.resume_from is None,
            "checkpoint.resume_from",
            "Ray Train goes on from checkpoints of the same job only; have the program load another one itself",
        ),
        (
            given.keep_best is None or given.keep_last == default.keep_last,
            "checkpoint.keep_last",
            "Ray Train keeps the newest checkpoints or the best, not both; leave out keep_last or keep_best",
        ),
    ]


def _restart_rules(spec: JobSpec) -> list[Rule]:
    return [
        (
            not spec.restart.no_retry_on_exit_codes,
            "restart.no_retry_on_exit_codes",
            "Ray Train does not tell how a worker ended; leave it out",
        ),
        (
            spec.limits.hang_timeout == "auto",
            "limits.hang_timeout",
            "nobody watches Ray Train's workers for hangs; leave it out",
        ),
    ]
