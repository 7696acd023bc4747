"""Measurements: `python -m benchmarks`: Rubato beside its peers; `python -m benchmarks.steady`: a step taken apart."""
