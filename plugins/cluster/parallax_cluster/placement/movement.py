"""Measures what a change of placement costs: weights to load, and requests to move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.api import Estimate, LayerRange, ModelDemand, NodeProfile, Placement, PlacementProblem

HORIZON_S = 600.0
"""Seconds within which a change must gain more tokens than it costs."""
PAUSE_S = 10.0
"""Seconds for which a pipeline that changes does not serve besides loading: its nodes are linked, and its requests are
computed again."""
LEAST_GAIN = 0.1
"""The share by which a change of pipelines that serve must be better: predictions are no more exact."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Movement:
    """What it takes to get from one placement to another."""

    load_bytes: int
    """Bytes of weights that nodes must load, and do not have in memory."""
    load_s: float
    """Seconds until the last node has loaded them; pipelines that change do not serve meanwhile."""
    num_moved: int
    """The number of pipelines that change, and whose requests are computed again."""


def measure_movement(problem: PlacementProblem, old: Placement, new: Placement) -> Movement:
    """Return what it takes to get from ``old`` to ``new``."""
    nodes, loads = {node.name: node for node in problem.cluster.nodes}, find_loads(problem, old, new)
    return Movement(
        load_bytes=sum(size for sizes in loads.values() for size in sizes.values()),
        load_s=max((_measure_load(nodes[name], sizes) for name, sizes in loads.items()), default=0.0),
        num_moved=len(set(old.pipelines) - set(new.pipelines)),
    )


def find_loads(problem: PlacementProblem, old: Placement, new: Placement) -> dict[str, dict[int, int]]:
    """Return the bytes of the layers that each node must load to get from ``old`` to ``new``, by node and layer."""
    held = {stage.node: stage.holds for stages in old.pipelines for stage in stages}
    held.update({node.name: node.loaded_layers for node in problem.cluster.nodes if node.loaded_layers is not None})
    wanted = {stage.node: stage.holds for stages in new.pipelines for stage in stages}
    return {
        node: _weigh(problem.model, layers, missing)
        for node, layers in wanted.items()
        if (missing := _list_missing(layers, held.get(node)))
    }


def _weigh(model: ModelDemand, layers: LayerRange, missing: Sequence[int]) -> dict[int, int]:
    """Return the bytes to load for each missing layer of a node; shared embeddings are loaded once."""
    sizes = {layer: model.layers[layer].weights for layer in missing}
    ends = [layer for layer in (len(model.layers) - 1, 0) if layer in sizes]
    if len(layers) == len(model.layers) and ends:
        sizes[ends[0]] -= model.shared
    return sizes


def is_worth_moving(problem: PlacementProblem, old: Estimate, new: Estimate, movement: Movement) -> bool:
    """Return whether a change gains more tokens within `HORIZON_S` than it costs.

    It gains in proportion to the objective. It costs the tokens that the pipelines that change would have answered
    while weights are loaded and in `PAUSE_S`, and for each of their requests half of its tokens, which are computed
    again. A gain of less than `LEAST_GAIN` is none, except where no pipeline changes.
    """
    if not old.num_requests:
        return new.num_requests > 0
    if problem.goal.objective == "throughput":
        gain = new.tokens_per_s / old.tokens_per_s - 1
    else:
        gain = old.response_s / new.response_s - 1 if new.num_requests else -1
    if movement.num_moved and gain < LEAST_GAIN:
        return False
    share = min(1.0, movement.num_moved / len(old.pipelines))
    lost = old.num_requests * (problem.goal.prompt_tokens + problem.goal.output_tokens) / 2
    return gain * old.tokens_per_s * HORIZON_S > share * ((movement.load_s + PAUSE_S) * old.tokens_per_s + lost)


def _list_missing(wanted: LayerRange, held: LayerRange | None) -> list[int]:
    layers = range(wanted.start, wanted.stop)
    return [layer for layer in layers if held is None or not held.start <= layer < held.stop]


def _measure_load(node: NodeProfile, sizes: dict[int, int]) -> float:
    """Return the seconds to load layers of these bytes, by number: from the disk if cached, else from elsewhere."""
    cached = node.cached_layers
    seconds = 0.0
    for layer, size in sizes.items():
        is_cached = cached is not None and cached.start <= layer < cached.stop
        seconds += size / (node.disk_bandwidth if is_cached else node.download_bandwidth)
    return seconds
