"""Closed forms that say how many: samples for a memory, workers for an efficiency, servers for a model. Pure.

Source: Zou et al. 2017, Distributed Training Large-Scale Deep Architectures, arXiv:1709.06622 (all but the last one, in
the order in which its procedure asks them; those of workers and servers derived again here from Amdahl's law and from
the bytes of a server's port); the last one from the time of a ring.
"""

from __future__ import annotations

from math import ceil, floor, inf, sqrt


def samples_for(memory_bytes: int, held_bytes: int, sample_bytes: int) -> float:
    """The most samples of a pass that fit into a memory, M - M_held >= b M_sample; infinite where none takes any.

    Zou et al. ask this first: the largest mini-batch that the memory of a device leaves room for beside parameters and
    what else does not grow with it. Which algorithm a convolution then uses, which they choose along with it by what
    is left, torch and its libraries do.

    Args:    held_bytes: by the worker, and by a pass whatever its samples.  sample_bytes: for each sample of a pass.
    Returns: 0 where not one fits.
    """
    room = memory_bytes - held_bytes
    if room < 0:
        return 0
    return room // sample_bytes if sample_bytes else inf


def efficiency_of(workers: int, overhead: float) -> float:
    """How much of G workers' time is work.

    Args:    overhead: R, the seconds of a step that do not shrink with the workers, for each second that does, on one.
    """
    return (1 + overhead) / (1 + workers * overhead)


def workers_for(efficiency: float, overhead: float) -> float:
    """The most workers that keep this efficiency, at least 1; infinite where nothing is lost.

    Raises:  ValueError: the efficiency is not in (0, 1].
    """
    if not 0 < efficiency <= 1:
        raise ValueError(f"an efficiency lies above 0 and is at most 1, got {efficiency}")
    if overhead == 0:
        return inf
    exact = (1 + overhead - efficiency) / (efficiency * overhead)
    return max(1, floor(exact + 1e-9))


def servers_for(model_bytes: float, workers: int, bytes_per_s: float, compute_s: float) -> int:
    """The fewest parameter servers whose ports hide behind the computation of a step, 2 n P / (S B) <= T."""
    return max(1, ceil(2 * model_bytes * workers / (bytes_per_s * compute_s) - 1e-9))


def best_workers(batch_s: float, model_bytes: float, bytes_per_s: float, latency_s: float) -> float:
    """W* at which a global batch is fastest over gloo's ring, by T(W) = t/W + 2n(W-1)/(W B) + 4 a W.

    Args:    batch_s: t, the computation of the whole batch on one worker.
    Returns: 1 where more workers only cost; infinite without latency.
    """
    gained = batch_s - 2 * model_bytes / bytes_per_s
    if gained <= 0:
        return 1.0
    return inf if latency_s == 0 else max(1.0, sqrt(gained / (4 * latency_s)))
