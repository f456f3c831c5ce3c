from __future__ import annotations

import os
import signal
from dataclasses import replace
from threading import Lock

import pytest

from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.contracts.placement import ClusterProfile, LinkProfile, PlacementProblem
from parallax_core.contracts.policy import QueueView, RoutingPolicy
from parallax_core.engine.options import HeadOptions
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.routing import PrefixAffinity
from parallax_simulate.cluster import ChurnOptions
from parallax_simulate.processes import open_groups
from parallax_simulate.report import SimulationReport
from parallax_simulate.run import SimulationOptions, make_source, run_groups
from parallax_simulate.trace import Arrival, TraceOptions, make_trace, parse_length
from tests.support.clusters import make_model, make_node

NODES = tuple(make_node(f"n{rank}", memory, 20, 100) for rank, memory in enumerate((40, 40, 40, 5, 6)))
NEAR = LinkProfile(ends=("", ""), round_trip_s=0.002, bandwidth=1e9)
PROBLEM = PlacementProblem(cluster=ClusterProfile(nodes=NODES, default_link=NEAR), model=make_model())


def run(options: SimulationOptions, num_processes: int, arrivals: list[Arrival]) -> SimulationReport:
    estimator = PlacementEstimator(PROBLEM)
    placement = SearchPlacement().place(PROBLEM, estimator)
    with open_groups(make_source(estimator, placement, options), num_processes) as groups:
        assert len(groups) == num_processes
        return run_groups(groups, arrivals, options)


def make_arrivals(number: int, shared: int = 0) -> list[Arrival]:
    lengths = parse_length("16-400", "p"), parse_length("1-60", "o")
    options = TraceOptions(rate=4.0, prompt=lengths[0], output=lengths[1], shared_tokens=shared, groups=4, burst=4)
    return list(make_trace(options, number))


@pytest.mark.parametrize(
    ("policy", "shared", "is_coarse"),
    [(LeastFinishTime(), 0, False), (PrefixAffinity(), 64, False), (LeastPendingTokens(), 0, True)],
)
def test_processes_give_the_same_report_as_one(policy: RoutingPolicy, shared: int, is_coarse: bool) -> None:
    churn = ChurnOptions(every_s=4.0, down_s=3.0)
    options = SimulationOptions(routing=policy, churn=churn, slow={"n0": 2.0}, is_coarse=is_coarse)
    arrivals = make_arrivals(60, shared)
    one = run(options, 1, arrivals)
    assert one.num_losses > 1
    assert one.num_moved > 0
    assert run(options, 2, arrivals) == one


class Waiter:
    """A batching policy that cannot be sent."""

    def __init__(self, held: object) -> None:
        self.held = held

    def wait_s(self, queue: QueueView) -> float:
        return 0.0


MEASURE = lambda _: 0.0  # noqa: E731 -- pickle raises another error for it than for a lock


@pytest.mark.parametrize("held", [Lock(), MEASURE], ids=["lock", "function without a name"])
def test_policy_that_cannot_be_sent_is_refused(held: object) -> None:
    options = SimulationOptions(routing=LeastPendingTokens(), head=HeadOptions(batching=Waiter(held)))
    with pytest.raises(UsageError, match="cannot be sent") as caught:
        run(options, 2, make_arrivals(3))
    assert "--processes 1" in str(caught.value.hint)


def test_process_that_ends_early_is_an_error_not_a_wait() -> None:
    options = SimulationOptions(routing=LeastPendingTokens())
    estimator = PlacementEstimator(PROBLEM)
    source = make_source(estimator, SearchPlacement().place(PROBLEM, estimator), options)
    killed = replace(source, head=HeadOptions(batching=Killer()))
    with open_groups(killed, 2) as groups, pytest.raises(ParallaxError, match="ended early"):
        run_groups(groups, make_arrivals(20), options)


class Killer:
    """A batching policy that ends the process it was sent to."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def wait_s(self, queue: QueueView) -> float:
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.0


def test_interrupt_of_a_process_that_starts_is_left_to_the_one_that_started_it() -> None:
    options = SimulationOptions(routing=LeastPendingTokens(), head=HeadOptions(batching=Interrupter()))
    assert run(options, 2, make_arrivals(3)).num_finished == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Interrupter:
    """A batching policy that interrupts the process it is sent to, on its way."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__ |= state
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGINT)

    def wait_s(self, queue: QueueView) -> float:
        return 0.0
