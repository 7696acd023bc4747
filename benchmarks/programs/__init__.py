"""Training programs: one a peer, on the same workload."""
