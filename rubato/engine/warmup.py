"""Warm caches before joining, so that a joiner's first step is not its slowest."""

from __future__ import annotations

import contextlib

import torch

from rubato.data.randomness import capture, restore
from rubato.data.source import Source
from rubato.engine.state import TrainingState
from rubato.engine.step import to_device


def warm_up(state: TrainingState, source: Source, device: torch.device) -> None:
    """One forward and backward, best effort, that leaves no trace in parameters, gradients, buffers and generators.

    The loss is not known here, so the outputs are summed. No optimizer step: it would create lazy state. A model that
    is not called with the first part of a batch is simply not warmed.
    """
    random_state = capture()
    buffers = [(one, one.own.clone()) for one in state.buffers]
    # Outside of torch.inference_mode() nothing can be written into what was made under it.
    parameters = [(one, one.detach().clone()) for _, one in state.named_parameters() if not one.is_inference()]
    try:
        with contextlib.suppress(Exception):
            batch = to_device(source.read(0, 0), device)
            for model in state.models.values():
                with contextlib.suppress(Exception):
                    output = model(batch[0] if isinstance(batch, (tuple, list)) else batch)
                    if isinstance(output, torch.Tensor):
                        output.float().sum().backward()  # type: ignore[no-untyped-call]
    finally:
        with torch.no_grad():
            for parameter, values in parameters:
                parameter.grad = None
                parameter.copy_(values)
            for buffer, before in buffers:
                buffer.put(before)
        restore(random_state)
