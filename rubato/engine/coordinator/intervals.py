"""How often to save: the interval that loses least. Pure."""

from __future__ import annotations

import math

PRIOR_S = 24 * 3600.0
"""Before anything is known, a job counts as one that loses all its workers once a day."""
SHORTEST_S = 5.0
WRITES_APART = 4.0
"""An interval is at least so many times what a checkpoint takes to be written: storage and memory need to rest, too."""


def best_interval_s(stall_s: float, write_s: float, running_s: float, losses: int, longest_s: float) -> float:
    """The interval at which stalls and repeated work cost least together.

    With stall C and mean time M between losses of all workers, saving every T seconds costs C/T of the time in stalls
    and T/2M in work done again; the sum is least at T = sqrt(2CM). M is estimated from the run itself, beginning with
    `PRIOR_S`: (running + prior) / (losses + 1).

    Args:    stall_s: training stood so long for the last checkpoint.  write_s: from its copy until it was on storage.
             running_s: since training began.  losses: of all workers, since then.
             longest_s: what the user wants at most; it wins over `SHORTEST_S`.
    Returns: seconds, between `SHORTEST_S` and `longest_s`, and at least `WRITES_APART` times `write_s`.
    Units:   seconds.
    Source:  Young 1974, doi:10.1145/361147.361115; Daly 2006, doi:10.1016/j.future.2004.11.016.
    """
    between_losses = (running_s + PRIOR_S) / (losses + 1)
    least = math.sqrt(2.0 * stall_s * between_losses)
    return max(min(max(least, SHORTEST_S), longest_s), WRITES_APART * write_s)
