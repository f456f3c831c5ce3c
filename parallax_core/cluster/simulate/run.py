"""Runs a simulation of a placement, from the values of the contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.estimate import PlacementEstimator
from parallax_core.cluster.simulate.cluster import ChurnOptions, ClusterSimulation
from parallax_core.cluster.simulate.coarse import CoarsePipeline
from parallax_core.cluster.simulate.pipeline import ExactPipeline, PipelineModel, SimulatedPipeline
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
    is_coarse: bool = False
    """Whether pipelines are `CoarsePipeline`, which needs less time and knows neither prefixes nor other policies."""


def simulate(
    estimator: PlacementEstimator, placement: Placement, trace: Iterable[Arrival], options: SimulationOptions
) -> SimulationReport:
    """Serve the arrivals, in order of time, on the pipelines of a placement, and return the figures.

    Raises:
        ValueError: if the placement is not valid.
        UsageError: if a coarse simulation is asked for what it does not know.
    """
    costs = estimator.costs
    slow = [options.slow.get(node.name, 1.0) for node in costs.nodes]
    models = [
        PipelineModel(costs, pipeline.order, pipeline.cuts, slow) for pipeline in estimator.read_pipelines(placement)
    ]
    arrivals = list(trace)
    has_prefixes = any(arrival.shared_tokens for arrival in arrivals)
    make = _choose_pipeline(options, has_prefixes=has_prefixes)
    makers = [partial(make, model, options.context_length) for model in models]
    simulation = ClusterSimulation(makers, options.routing, options.churn, has_prefixes=has_prefixes)
    simulation.run(arrivals)
    return make_report(simulation, options.limits)


def _choose_pipeline(
    options: SimulationOptions, *, has_prefixes: bool
) -> Callable[[PipelineModel, int], SimulatedPipeline]:
    """Return what makes a pipeline from its model and the context length."""
    if not options.is_coarse:
        return partial(ExactPipeline, options=options.head)
    if has_prefixes:
        raise UsageError(
            "a coarse simulation has no prefix cache", "leave out the shared prefixes, or simulate exactly"
        )
    return partial(CoarsePipeline, limits=options.head.limits)
