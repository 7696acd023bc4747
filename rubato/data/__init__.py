"""Which samples a microbatch holds, the random numbers it sees, and how its rows are read.

`order` the sample order as a function of the step · `randomness` seeds by key · `fetch` rows to fresh tensors.
"""
