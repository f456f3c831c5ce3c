"""Describes the stages of a plan: memory left, hops, and the origin of their figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.devices import find_device
from parallax_core.api import NodeProfile, PipelineEstimate, PlacedStage, Placement, PlacementProblem

Origin = Literal["measured", "typical", "data sheet"]
ERRORS: dict[Origin, float] = {"measured": 1.15, "typical": 1.5, "data sheet": 2.0}
"""How many times off predictions from such figures may be, either way; docs/explanation/placement.md compares some."""


class StageLook(NamedTuple):
    """What is worth seeing of a stage."""

    free: int
    """Bytes of memory that its weights and the KV cache of its requests leave."""
    hop_s: float
    """Seconds of a token from the stage before it; 0: it is the first."""
    origin: Origin


def look_at_stages(costs: CostModel, stages: Sequence[PlacedStage], estimate: PipelineEstimate) -> Iterator[StageLook]:
    """Yield what is worth seeing of each stage of a pipeline."""
    problem = costs.problem
    indices = {node.name: rank for rank, node in enumerate(costs.nodes)}
    before: int | None = None
    for stage in stages:
        node, (start, stop) = indices[stage.node], (stage.layers.start, stage.layers.stop)
        cached = (costs.kept[stop] - costs.kept[start]) * problem.goal.memory_fraction
        taken = costs.measure_weights(start, stop) + estimate.num_requests * cached
        share = 1.0 if stage.lease is None else stage.lease.memory_share
        hop_s = 0.0
        if before is not None:
            link = costs.find_link(before, node)
            hop_s = link.round_trip_s / 2 + problem.model.cross(start) / link.bandwidth
        profile = problem.cluster.nodes[node]
        yield StageLook(max(0, round(share * profile.device.memory - taken)), hop_s, name_origin(profile))
        before = node


def name_origin(node: NodeProfile) -> Origin:
    """Return where the figures of a node come from: a data sheet's are those of no known device."""
    if node.device.is_measured:
        return "measured"
    known = find_device(node.device.name)
    is_typical = known is not None and (known.flops, known.bandwidth) == (node.device.flops, node.device.bandwidth)
    return "typical" if is_typical else "data sheet"


def find_origin(problem: PlacementProblem, placement: Placement) -> Origin:
    """Return the least certain origin of the figures of the nodes that a placement uses."""
    used = {stage.node for stages in placement.pipelines for stage in stages}
    origins = {name_origin(node) for node in problem.cluster.nodes if node.name in used}
    return max(origins, key=lambda origin: ERRORS[origin], default="measured")


def find_range(problem: PlacementProblem, placement: Placement) -> tuple[float, float]:
    """Return the factors between which the real speed is expected to be of the predicted one."""
    error = ERRORS[find_origin(problem, placement)]
    return 1 / error, error
