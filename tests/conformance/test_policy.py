from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from parallax_cluster.node.coordinator.placement_guard import PlacementGuard
from parallax_cluster.offers import POLICIES as OF_CLUSTER
from parallax_cluster.placement.baselines import GreedyPlacement, WaterFillingPlacement
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import (
    ArrivalView,
    Estimator,
    Holder,
    LayerRange,
    PlacedStage,
    Placement,
    PlacementProblem,
    PromptShare,
    PromptView,
    QueueView,
    ReplicaView,
    RequestId,
    SchedulingView,
)
from parallax_core.builtin.batching import WorkConserving
from parallax_core.builtin.offers import POLICIES
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.node.policy.guard import SchedulingGuard
from parallax_core.testing.placement import PlacementConformance
from parallax_core.testing.policy import (
    BatchingConformance,
    PolicyConformance,
    PreemptionConformance,
    RoutingConformance,
)
from parallax_core.testing.scheduling import SchedulingConformance, serve_requests
from parallax_core.testing.toy import Toy
from parallax_policies.batching import Delay, Size, SizeOrDelay
from parallax_policies.least_finish import LeastFinishTime
from parallax_policies.offers import POLICIES as BESIDE
from parallax_policies.preemption import NewestFirst, NoPreemption
from parallax_policies.routing import PrefixAffinity, RoundRobin
from parallax_policies.scheduling import FairByKey, ShortestFirst
from tests.conformance.harness import find_failures, list_tests


class TestWorkConserving(BatchingConformance):
    policy = WorkConserving()
    is_work_conserving = True
    bound_s = 0.0


class TestSize(BatchingConformance):
    policy = Size(size=3)


class TestDelay(BatchingConformance):
    policy = Delay(delay_s=0.02)
    bound_s = 0.02


class TestSizeOrDelay(BatchingConformance):
    policy = SizeOrDelay(size=2, delay_s=0.3)
    bound_s = 0.3


class TestPriorityOrder(SchedulingConformance):
    policy = PriorityOrder()


class TestShortestFirst(SchedulingConformance):
    policy = ShortestFirst(patience_s=3.0)


class TestFairByKey(SchedulingConformance):
    policy = FairByKey()


class TestLowestPriority(PreemptionConformance):
    policy = LowestPriority()


class TestNewestFirst(PreemptionConformance):
    policy = NewestFirst()


class TestNobody(PreemptionConformance):
    policy = NoPreemption()


class TestLeastPendingTokens(RoutingConformance):
    policy = LeastPendingTokens()


class TestRoundRobin(RoutingConformance):
    policy = RoundRobin()


class TestPrefixAffinity(RoutingConformance):
    policy = PrefixAffinity(slack_tokens=100)


class TestLeastFinishTime(RoutingConformance):
    policy = LeastFinishTime(choices=2)


class TestSearchPlacement(PlacementConformance):
    policy = SearchPlacement(effort=20, seed=1)
    estimator = PlacementEstimator

    def make_policies(self) -> list[Any]:
        """Return policies that search a little."""
        return [SearchPlacement(effort=20), copy.deepcopy(self.policy)]


@pytest.mark.nightly
class TestSearchPlacementOfAllEffort(PlacementConformance):
    policy = SearchPlacement(effort=100, seed=1)
    estimator = PlacementEstimator


class TestGreedyPlacement(PlacementConformance):
    policy = GreedyPlacement(param_mem_ratio=0.9)
    estimator = PlacementEstimator


class TestWaterFillingPlacement(PlacementConformance):
    policy = WaterFillingPlacement(most_states=3)
    estimator = PlacementEstimator


def test_every_policy_is_held_to_its_contract() -> None:
    kits = [kit for name, kit in globals().items() if name.startswith("Test")]
    held = {type(cast("type[PolicyConformance[Any]]", kit).policy) for kit in kits}
    assert {spec.factory.load() for spec in (*POLICIES, *BESIDE, *OF_CLUSTER)} == held


def fails(kit: type[PolicyConformance[Any]], policy: type[object], **changes: object) -> set[str]:
    """Return the tests of a kit that fail on a policy."""
    return set(find_failures(type("Kit", (kit,), {"policy": policy(), **changes})))


@dataclasses.dataclass(frozen=True)
class Never:
    def wait_s(self, queue: QueueView) -> float:
        return math.nan


@dataclasses.dataclass(frozen=True)
class Past:
    def wait_s(self, queue: QueueView) -> float:
        return -queue.oldest_wait_s


@dataclasses.dataclass(frozen=True)
class Growing:
    def wait_s(self, queue: QueueView) -> float:
        return 0.0 if queue.num_ready > 5 else queue.oldest_wait_s


@dataclasses.dataclass(frozen=True)
class Halving:
    """Waits half of what is left, for ever."""

    def wait_s(self, queue: QueueView) -> float:
        return max(1.0 - queue.oldest_wait_s, 1e-12) / 2


@dataclasses.dataclass
class Counting:
    asked: int = 0

    def wait_s(self, queue: QueueView) -> float:
        self.asked += 1
        return 0.0 if self.asked % 2 else 0.01


@dataclasses.dataclass(frozen=True)
class Moody:
    def wait_s(self, queue: QueueView) -> float:
        return random.random() * 1e-9


class Bare:
    def wait_s(self, queue: QueueView) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class Demanding:
    sizes: tuple[int, ...] = (1, 2)

    def wait_s(self, queue: QueueView) -> float:
        return 0.0


WAIT, FROZEN = "test_wait_is_a_number_of_seconds", "test_policy_is_frozen"
SAME, BEGINS = "test_same_input_gives_same_answer", "test_step_begins_at_last"
LONGER, PLAIN = "test_waiting_longer_never_makes_the_wait_longer", "test_options_are_plain_and_have_defaults"


@pytest.mark.parametrize(
    ("policy", "changes", "expected"),
    [
        (Never, {}, {WAIT}),
        (Past, {}, {WAIT}),
        (Growing, {}, {LONGER}),
        (Halving, {}, {BEGINS}),
        (Counting, {}, {FROZEN, SAME, LONGER}),
        (Moody, {}, {SAME, LONGER, BEGINS}),
        (Bare, {}, {PLAIN, FROZEN}),
        (Demanding, {}, {PLAIN}),
        (Delay, {"bound_s": 0.01}, {BEGINS}),
        (Size, {"bound_s": 1.0}, {BEGINS}),
        (Delay, {"is_work_conserving": True}, {"test_work_conserving_policy_never_waits"}),
    ],
)
def test_kit_catches_a_fault_of_batching(policy: type[object], changes: dict[str, object], expected: set[str]) -> None:
    assert fails(BatchingConformance, policy, **changes) == expected


ASKED = itertools.count()


def list_prompts(view: SchedulingView) -> list[PromptView]:
    return [each for each in (*view.running, *view.waiting) if each.remaining]


@dataclasses.dataclass(frozen=True)
class Raising:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        raise LookupError("no prompt will do")


@dataclasses.dataclass(frozen=True)
class Leaving:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        raise SystemExit(3)


@dataclasses.dataclass(frozen=True)
class Unknown:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return [PromptShare(len(view.running) + len(view.waiting), 1)]


@dataclasses.dataclass(frozen=True)
class Repeating:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return 2 * [PromptShare(each.index, 1) for each in list_prompts(view)]


@dataclasses.dataclass(frozen=True)
class Negative:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return [PromptShare(each.index, -1) for each in list_prompts(view)]


@dataclasses.dataclass(frozen=True)
class Greedy:
    """Gives more than is asked for."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return [PromptShare(each.index, each.remaining + 1) for each in list_prompts(view)]


@dataclasses.dataclass(frozen=True)
class Lazy:
    """Yields its shares."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return cast("Sequence[PromptShare]", (PromptShare(each.index, 1) for each in list_prompts(view)))


@dataclasses.dataclass(frozen=True)
class Nothing:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return cast("Sequence[PromptShare]", None)


@dataclasses.dataclass(frozen=True)
class Withholding:
    """Names all prompts, and gives nothing to any."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        return [PromptShare(each.index, 0) for each in list_prompts(view)]


@dataclasses.dataclass(frozen=True)
class NewestPrompt:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        prompts = sorted(list_prompts(view), key=lambda each: (each.age_s, -each.index))
        return [PromptShare(each.index, each.remaining) for each in prompts]


@dataclasses.dataclass(frozen=True)
class Trickling:
    """Gives the oldest prompt, which comes last, a token a step."""

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        prompts = list_prompts(view)
        shares = [PromptShare(each.index, each.remaining) for each in prompts[1:]]
        return [*(PromptShare(each.index, 1) for each in prompts[:1]), *shares[::-1]]


@dataclasses.dataclass(frozen=True)
class Shuffling:
    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        prompts = list_prompts(view)
        random.Random(next(ASKED)).shuffle(prompts)
        return [PromptShare(each.index, each.remaining) for each in prompts]


LEGAL, STARVES = "test_shares_are_those_of_prompts_in_the_view", "test_no_prompt_starves"
SERVES = "test_requests_end_with_their_tokens"
FAULTY_SCHEDULING: list[tuple[type[Any], set[str]]] = [
    (Raising, {LEGAL, SERVES, SAME, "test_input_is_left_as_it_was"}),
    (Unknown, {LEGAL, SERVES}),
    (Repeating, {LEGAL, SERVES}),
    (Negative, {LEGAL, SERVES}),
    (Greedy, {LEGAL, SERVES}),
    (Lazy, {LEGAL, SERVES, SAME}),
    (Nothing, {LEGAL, SERVES}),
    (NewestPrompt, {STARVES}),
    (Shuffling, {SAME, STARVES}),
    (Withholding, set()),
]


@pytest.mark.parametrize(("policy", "expected"), FAULTY_SCHEDULING)
def test_kit_catches_a_fault_of_scheduling(policy: type[object], expected: set[str]) -> None:
    assert fails(SchedulingConformance, policy) == expected


@pytest.mark.parametrize("policy", [*(policy for policy, _ in FAULTY_SCHEDULING), Leaving, Trickling])
def test_faulty_scheduling_changes_no_answer_and_is_reported_once(
    policy: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for request, tokens in serve_requests(SchedulingGuard(policy())):
        assert tokens == Toy().continuation(request.prompt, 3)
    is_valid = policy in {NewestPrompt, Shuffling, Trickling, Withholding}
    assert [record.levelname for record in caplog.records] == ([] if is_valid else ["ERROR"])


@dataclasses.dataclass(frozen=True)
class Ghost:
    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        return RequestId("nobody")


@dataclasses.dataclass(frozen=True)
class Sorting:
    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        cast("list[Holder]", holders).sort(key=lambda holder: holder.num_tokens)
        return holders[-1].id if holders else None


@dataclasses.dataclass(frozen=True)
class Turning:
    """Remembers in a place of its module."""

    def choose(self, holders: Sequence[Holder]) -> RequestId | None:
        return holders[next(ASKED) % len(holders)].id if holders else None


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Ghost, {"test_one_of_the_holders_gives_way_or_nobody"}),
        (Sorting, {"test_input_is_left_as_it_was", "test_any_sequence_will_do"}),
        (Turning, {SAME, "test_any_sequence_will_do"}),
    ],
)
def test_kit_catches_a_fault_of_preemption(policy: type[object], expected: set[str]) -> None:
    assert fails(PreemptionConformance, policy) == expected


@dataclasses.dataclass(frozen=True)
class Indexing:
    """Takes the index of a replica for its rank."""

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        return arrival.number % len(replicas)


@dataclasses.dataclass(frozen=True)
class Popping:
    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        return cast("list[ReplicaView]", replicas).pop().rank


@dataclasses.dataclass(frozen=True)
class Drifting:
    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        return replicas[next(ASKED) % len(replicas)].rank


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Indexing, {"test_one_of_the_replicas_is_chosen"}),
        (Popping, {"test_input_is_left_as_it_was", "test_any_sequence_will_do", "test_one_of_the_replicas_is_chosen"}),
        (Drifting, {SAME, "test_any_sequence_will_do"}),
    ],
)
def test_kit_catches_a_fault_of_routing(policy: type[object], expected: set[str]) -> None:
    assert fails(RoutingConformance, policy) == expected


@dataclasses.dataclass(frozen=True)
class Crowding:
    """Puts all layers on the first node, whatever its memory."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        layers = LayerRange(0, len(problem.model.layers))
        return Placement(tuple((PlacedStage(node.name, layers),) for node in problem.cluster.nodes[:1]))


def test_kit_catches_a_fault_of_placement() -> None:
    assert fails(PlacementConformance, Crowding, estimator=PlacementEstimator) == {"test_placement_is_valid"}


def test_invalid_placement_of_a_policy_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    problem = PlacementConformance().list_cases()[3]
    estimator = PlacementEstimator(problem)
    placement = PlacementGuard(Crowding()).place(problem, estimator)
    assert estimator.estimate(placement).num_requests > 0
    assert "policy is faulty" in caplog.text


def test_every_test_of_the_kits_is_shown_to_catch_something() -> None:
    shown = {WAIT, FROZEN, SAME, BEGINS, LONGER, PLAIN, "test_work_conserving_policy_never_waits"}
    shown |= {"test_one_of_the_holders_gives_way_or_nobody", "test_one_of_the_replicas_is_chosen"}
    shown |= {"test_input_is_left_as_it_was", "test_any_sequence_will_do", "test_placement_is_valid"}
    shown |= {LEGAL, STARVES, SERVES}
    kits = (
        BatchingConformance,
        SchedulingConformance,
        PreemptionConformance,
        RoutingConformance,
        PlacementConformance,
    )
    assert {name for kit in kits for name in list_tests(kit)} == shown
