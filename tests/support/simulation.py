"""Simulates a placement in this process."""

from __future__ import annotations

from collections.abc import Iterable

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_core.contracts.placement import Placement
from parallax_simulate.report import SimulationReport
from parallax_simulate.run import SimulationOptions, make_source, run_groups
from parallax_simulate.trace import Arrival


def simulate(
    estimator: PlacementEstimator, placement: Placement, trace: Iterable[Arrival], options: SimulationOptions
) -> SimulationReport:
    """Serve the arrivals, in order of time, on the pipelines of a placement; return the figures."""
    source = make_source(estimator, placement, options)
    return run_groups([source.make_group(range(len(source.pipelines)))], trace, options)
