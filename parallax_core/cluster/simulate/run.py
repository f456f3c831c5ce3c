"""Runs a simulation of a placement, from the values of the contracts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.simulate.cluster import ChurnOptions, ClusterSimulation
from parallax_core.cluster.simulate.pipeline import ExactPipeline, PipelineModel
from parallax_core.cluster.simulate.report import LatencyLimits, SimulationReport, make_report
from parallax_core.cluster.simulate.trace import Arrival
from parallax_core.contracts.placement import Placement
from parallax_core.contracts.policy import RoutingPolicy
from parallax_core.engine.options import HeadOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationOptions:
    """What is simulated besides the placement and the requests."""

    routing: RoutingPolicy
    head: HeadOptions = field(default_factory=HeadOptions)
    churn: ChurnOptions = field(default_factory=ChurnOptions)
    slow: Mapping[str, float] = field(default_factory=dict)
    """How many times slower than its profile a node is, by its name; placement and routing are not told."""
    limits: LatencyLimits = field(default_factory=LatencyLimits)
    context_length: int = 32_768
    """The longest sequence, in tokens."""


def simulate(
    estimator: PlacementEstimator, placement: Placement, trace: Iterable[Arrival], options: SimulationOptions
) -> SimulationReport:
    """Serve the arrivals, in order of time, on the pipelines of a placement, and return the figures.

    Raises:
        ValueError: if the placement is not valid.
    """
    costs = estimator.costs
    slow = [options.slow.get(node.name, 1.0) for node in costs.nodes]
    models = [
        PipelineModel(costs, pipeline.order, pipeline.cuts, slow) for pipeline in estimator.read_pipelines(placement)
    ]
    makers = [partial(ExactPipeline, model, options.context_length, options.head) for model in models]
    arrivals = list(trace)
    simulation = ClusterSimulation(
        makers, options.routing, options.churn, has_prefixes=any(arrival.shared_tokens for arrival in arrivals)
    )
    simulation.run(arrivals)
    return make_report(simulation, options.limits)
