"""Gives vLLM's loader the weights of the stage that is being loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from parallax_core.api import LayerRange, StagePlan, find_missing, silent
from parallax_sampling_torch.stage_weights import StageWeights


def measure_stage(plan: StagePlan, layers: LayerRange, num_layers: int, dtype: torch.dtype) -> int:
    """Return the bytes in memory of a stage's weights with floats in ``dtype``, without reading them.

    Raises:
        ParallaxError: if a file is damaged or missing.
        Unsupported: if a tensor has a dtype that core does not read.
    """
    weights = StageWeights(plan.model, silent, layers, num_layers, find_missing(plan.model))
    for _ in weights.load():
        pass
    return weights.count_bytes(dtype)


_current: ContextVar[StageWeights] = ContextVar("weights")


@contextmanager
def load_stage(plan: StagePlan, layers: LayerRange, num_layers: int) -> Iterator[StageWeights]:
    """Make `get_weights` return the weights of a stage until the end of a with."""
    weights = StageWeights(plan.model, plan.progress, layers, num_layers, find_missing(plan.model))
    token = _current.set(weights)
    try:
        yield weights
    finally:
        _current.reset(token)


def get_weights() -> StageWeights:
    """Return the weights of the stage that is being loaded."""
    return _current.get()
