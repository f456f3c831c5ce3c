"""Runs a simulation of a placement, from the values of the contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.api import Placement, PlacementProblem, Progress, RoutingPolicy, silent
from parallax_core.api.cli import UsageError
from parallax_core.api.simulation import HeadOptions
from parallax_simulate.cluster import ChurnOptions, ClusterSimulation
from parallax_simulate.coarse import CoarsePipeline
from parallax_simulate.group import LocalGroup, ReplicaGroup
from parallax_simulate.pipeline import ExactPipeline, PipelineModel, SimulatedPipeline
from parallax_simulate.report import LatencyLimits, SimulationReport, make_report
from parallax_simulate.trace import Arrival


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
    num_users: int = 0
    """Users who each send the next request after an answer, whatever the times of arrivals; 0: arrivals count."""


@dataclass(frozen=True, slots=True)
class PipelineSource:
    """What the pipelines of a simulation are made from, in whatever process."""

    problem: PlacementProblem
    pipelines: Sequence[tuple[Sequence[int], Sequence[int]]]
    """The nodes of each pipeline's stages, and the first layer of each stage, then the number of layers."""
    slow: Mapping[str, float]
    head: HeadOptions
    context_length: int
    is_coarse: bool

    def make_group(self, ranks: Iterable[int]) -> LocalGroup:
        """Open the pipelines with these ranks."""
        costs = CostModel(self.problem)
        slow = [self.slow.get(node.name, 1.0) for node in costs.nodes]
        make: Callable[[PipelineModel, int], SimulatedPipeline] = (
            partial(CoarsePipeline, limits=self.head.limits)
            if self.is_coarse
            else partial(ExactPipeline, options=self.head)
        )
        makers = {
            rank: partial(make, PipelineModel(costs, *self.pipelines[rank], slow), self.context_length)
            for rank in ranks
        }
        return LocalGroup(makers)


def make_source(estimator: PlacementEstimator, placement: Placement, options: SimulationOptions) -> PipelineSource:
    """Return what the pipelines of a placement are made from.

    Raises:
        ValueError: if the placement is not valid.
    """
    pipelines = [(pipeline.order, pipeline.cuts) for pipeline in estimator.read_pipelines(placement)]
    return PipelineSource(
        estimator.costs.problem, pipelines, options.slow, options.head, options.context_length, options.is_coarse
    )


def run_groups(
    groups: Sequence[ReplicaGroup], trace: Iterable[Arrival], options: SimulationOptions, progress: Progress = silent
) -> SimulationReport:
    """Serve the arrivals, in order of time, on groups of pipelines, which are used up, and return the figures.

    Raises:
        UsageError: if a coarse simulation is asked for what it does not know.
    """
    arrivals = list(trace)
    has_prefixes = any(arrival.shared_tokens for arrival in arrivals)
    if options.is_coarse and has_prefixes:
        raise UsageError(
            "a coarse simulation has no prefix cache", "leave out the shared prefixes, or simulate exactly"
        )
    simulation = ClusterSimulation(groups, options.routing, options.churn, has_prefixes=has_prefixes)
    if options.num_users:
        [group] = groups
        if options.is_coarse or not isinstance(group, LocalGroup):
            raise UsageError("users are simulated exactly, in one process", "leave out --coarse and --processes")
        simulation.run_closed(arrivals, options.num_users, group, progress)
    else:
        simulation.run(arrivals, progress)
    return make_report(simulation, options.limits)
