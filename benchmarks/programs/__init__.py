"""Training programs: one a peer, on the same workload."""

WARM_STEPS = 5
"""Steps at the start of a run that do not count: caches and buffers are made in them."""
