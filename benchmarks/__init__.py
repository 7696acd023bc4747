"""Measurements: `python -m benchmarks` runs Rubato beside its peers, `python -m benchmarks.steady` takes a step apart."""
