"""Predicts the seconds of a stage's step from its rows and the roofline of the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from parallax_cluster.placement.cost_model import CostModel
from parallax_core.api import LayerDemand, Row


class StepWork(NamedTuple):
    """What a step asks of every layer."""

    num_tokens: float
    num_rows: float
    num_draws: float
    attended: tuple[float, ...]
    """The tokens that all its tokens attend to together, for each window of the model."""
    kept: tuple[float, ...]
    """The tokens of KV cache that are read, for each window."""


class StageTime:
    """The roofline of a stage; the formulas are those of `CostModel`, for given rows."""

    def __init__(self, costs: CostModel, node: int, start: int, stop: int, slowdown: float = 1.0) -> None:
        """Prepare the stage with the layers from ``start`` to ``stop``, ``slowdown`` times slower than its profile."""
        self.speed = costs.speeds[node]
        self._fixed_s = costs.measure_fixed(node, start, stop)
        self._slowdown = slowdown
        layers = costs.layers[start:stop]
        self._flops = float(sum(layer.flops for layer in layers))
        self._draw_flops = float(sum(layer.draw_flops for layer in layers))
        self._read = float(sum(layer.read for layer in layers))
        self._state = float(sum(layer.state for layer in layers))
        windows = list_windows(costs.layers)
        self._context_flops = [sum(float(each.context_flops) for each in layers if each.window == w) for w in windows]
        self._kv = [sum(float(each.read_kv) for each in layers if each.window == w) for w in windows]
        self._experts: dict[float, float] = {}
        for layer in layers:
            if layer.num_experts:
                unused = 1.0 - layer.num_active_experts / layer.num_experts
                self._experts[unused] = self._experts.get(unused, 0.0) + layer.experts

    def measure(self, work: StepWork) -> float:
        """Return the seconds of a step."""
        flops = work.num_tokens * self._flops + work.num_draws * self._draw_flops
        read = self._read + work.num_rows * self._state
        for each, attended in zip(self._context_flops, work.attended, strict=True):
            flops += each * attended
        for each, kept in zip(self._kv, work.kept, strict=True):
            read += each * kept
        for unused, size in self._experts.items():
            read += size * (1.0 - unused**work.num_tokens)
        return (max(flops * self.speed.flop_s, read * self.speed.byte_s) + self._fixed_s) * self._slowdown


def list_windows(layers: Iterable[LayerDemand]) -> tuple[int, ...]:
    """Return the different windows of a model's layers; 0: no window."""
    return tuple(sorted({layer.window for layer in layers}))


def weigh_rows(rows: Sequence[Row], windows: Sequence[int]) -> StepWork:
    """Return what the rows of a step ask for."""
    num_tokens, num_draws = 0, 0
    attended, kept = [0.0] * len(windows), [0.0] * len(windows)
    for row in rows:
        count, start = len(row.tokens), row.start
        num_tokens += count
        num_draws += len(row.outputs)
        for index, window in enumerate(windows):
            attended[index] += count_attended(start, count, window)
            kept[index] += min(start + count, window) if window else start + count
    return StepWork(num_tokens, len(rows), num_draws, tuple(attended), tuple(kept))


def count_attended(start: int, count: int, window: int) -> float:
    """Return the tokens that ``count`` tokens from ``start`` on attend to together; each also to itself."""
    within = min(max(window - start, 0), count) if window else count
    return within * start + within * (within + 1) / 2 + (count - within) * window
