"""Gives vLLM's loader the weights of the stage that is being loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from parallax_core.api import LayerRange, StagePlan, find_missing
from parallax_sampling_torch.stage_weights import StageWeights

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
