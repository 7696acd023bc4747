"""What a thread computes meanwhile is behind what was asked for before, and before what is asked for behind it."""

from __future__ import annotations

import torch

from rubato.engine.errand import Errand
from tests.gpu.test_communicator import CUDA


def test_it_has_a_stream_of_its_own_in_the_order_of_the_calls() -> None:
    streams: list[torch.cuda.Stream] = []
    matrix = torch.full((2000, 2000), 1e-3, device=CUDA)
    for _ in range(50):
        matrix = matrix @ matrix.clamp(max=1e-3)  # still under way when the errand begins
    expected = matrix.double().sum() * 2

    def call() -> torch.Tensor:
        streams.append(torch.cuda.current_stream(CUDA))
        return matrix.double().sum() * 2

    result = Errand("a test", CUDA, call).result()
    assert streams[0] != torch.cuda.current_stream(CUDA)
    torch.testing.assert_close(result, expected)
