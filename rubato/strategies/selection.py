"""Which elements of a vector are the largest, so that all workers and all runs choose alike."""

from __future__ import annotations

import torch


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """The places of the k largest, ascending; of equal ones those with the lower place count as larger.

    Shapes:  values (n,) -> (k,) int64.
    """
    if k >= values.numel():
        return torch.arange(values.numel(), device=values.device)
    # topk does not say which of equals it takes: so all above the k-th value, and the first of those that equal it.
    limit = torch.topk(values, k, sorted=False).values.min()
    above = torch.nonzero(values > limit).flatten()
    equal = torch.nonzero(values == limit).flatten()[: k - above.numel()]
    return torch.cat([above, equal]).sort().values
