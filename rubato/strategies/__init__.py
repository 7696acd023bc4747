"""What workers tell each other of a step's gradients: sums by other patterns than the engine's, and less than sums.

`sums`: the dense sum, by ring, tree, or halving and doubling. Each other file is one way to say less: a `Compressor`.
None of them knows the engine; what they need of it is `peers.Collectives`.
"""
