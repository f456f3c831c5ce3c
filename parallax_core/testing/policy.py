"""The kits for policies: one for each kind, with a common base.

Subclass the kit of the kind in a test module under a name that begins with ``Test``, and give the policy.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import (
    ArrivalView,
    BatchingPolicy,
    Holder,
    Policy,
    PreemptionPolicy,
    QueueView,
    ReplicaView,
    RoutingPolicy,
)
from parallax_core.testing.promise import broken

OPTIONS = "its fields, with defaults, are the options: numbers, strings or booleans"
DATACLASS = "A dataclass; its fields, with defaults, are the options"
PURE = "A policy is pure: it depends only on its arguments, and the same arguments give the same answer"
WAIT = "Return 0 to begin a step now, or the seconds after which to ask again"
HOLDER = "Return one of ``holders``, all of lower rank than the request in need, or None to let that request wait"
RANK = "Return the rank of one of ``replicas``, which are in order of rank and at least one"

C = TypeVar("C")
PLAIN = (bool, int, float, str)
READY = (1, 2, 3, 7, 8, 9, 64, 1000)
WAITS_S = (0.0, 1e-6, 0.001, 0.015, 0.016, 0.02, 0.5, 1.0, 60.0, 3600.0)
IN_FLIGHT = (0, 1, 2, 5)
MOST_ASKED = 1000
"""The number of calls after which a batching policy must have begun a step."""


class PolicyConformance(Generic[C]):
    """Tests for policies of all kinds; a case is the arguments of one call."""

    policy: Policy
    """The policy under test, with options of your choice; one with its defaults is tried beside it."""

    def make_policies(self) -> list[Any]:
        """Return the policies that are asked: with its defaults, and `policy`."""
        return [type(self.policy)(), copy.deepcopy(self.policy)]

    def list_cases(self) -> Sequence[C]:
        """Return the cases to call the policy with."""
        raise NotImplementedError

    def ask(self, policy: Any, case: C) -> object:  # noqa: ANN401 - each kind has a protocol of its own
        """Return the answer of a policy."""
        raise NotImplementedError

    def test_options_are_plain_and_have_defaults(self) -> None:
        """A dataclass, whose fields all have defaults that are numbers, strings or booleans."""
        kind: Any = type(self.policy)
        name = kind.__name__
        assert dataclasses.is_dataclass(kind), broken(f"{name} is not a dataclass", DATACLASS)
        for field in dataclasses.fields(kind):
            has_default = field.default is not dataclasses.MISSING
            assert has_default, broken(f"{name}.{field.name} has no default", OPTIONS)
            is_plain = isinstance(field.default, PLAIN)
            assert is_plain, broken(f"the default of {name}.{field.name} is {field.default!r}", OPTIONS)

    def test_policy_is_frozen(self) -> None:
        """Nothing of a policy changes once it is made, so that it cannot remember."""
        kind = type(self.policy)
        params = getattr(kind, "__dataclass_params__", None)
        is_frozen = params is not None and params.frozen
        assert is_frozen, broken(f"{kind.__name__} is not a frozen dataclass, so it may keep state", PURE)

    def test_same_input_gives_same_answer(self) -> None:
        """Whatever was asked in between, in whatever order, and of a policy just made as of an old one."""
        for fresh, used in zip(self.make_policies(), self.make_policies(), strict=True):
            cases = self.list_cases()
            first = [self._answer(used, case) for case in cases]
            again = [self._answer(used, case) for case in reversed(cases)][::-1]
            other = [self._answer(copy.deepcopy(fresh), case) for case in cases]
            for case, *answers in zip(cases, first, again, other, strict=True):
                is_same = all(answer == answers[0] for answer in answers)
                assert is_same, broken(f"{used!r} answers {case!r} with {answers}", PURE)

    def test_input_is_left_as_it_was(self) -> None:
        """A policy changes nothing of what it is given, lists included."""
        for policy in self.make_policies():
            for case in self.list_cases():
                given = copy.deepcopy(case)
                self.ask(policy, given)
                assert given == case, broken(f"{policy!r} has changed {case!r} into {given!r}", PURE)

    def _answer(self, policy: Any, case: C) -> object:  # noqa: ANN401 - as above
        answer = self.ask(policy, copy.deepcopy(case))
        return "nan" if isinstance(answer, float) and math.isnan(answer) else answer


class BatchingConformance(PolicyConformance[QueueView]):
    """Holds a batching policy to its contract."""

    bound_s: float | None = None
    """The most seconds that ``policy`` holds back a step that could run; None: up to the engine's own limit."""
    is_work_conserving: bool = False
    """Whether it never holds back a step."""

    def list_cases(self) -> Sequence[QueueView]:
        """Return queues of many lengths that have waited for many times."""
        return [
            QueueView(num_ready=ready, oldest_wait_s=wait, num_in_flight=flying)
            for ready, wait, flying in itertools.product(READY, WAITS_S, IN_FLIGHT)
        ]

    def ask(self, policy: BatchingPolicy, case: QueueView) -> float:
        """Return how long it would wait."""
        return policy.wait_s(case)

    def test_wait_is_a_number_of_seconds(self) -> None:
        """0 or more, perhaps infinite; never NaN, never negative, and a number."""
        for policy in self.make_policies():
            for case in self.list_cases():
                wait = self.ask(policy, case)
                is_number = type(wait) in {int, float} and wait >= 0
                assert is_number, broken(f"{policy!r} answers {case!r} with {wait!r}", WAIT)

    def test_waiting_longer_never_makes_the_wait_longer(self) -> None:
        """Of two queues alike, the one that has waited longer is not made to wait longer still."""
        for policy, ready, flying in itertools.product(self.make_policies(), READY, IN_FLIGHT):
            views = [QueueView(num_ready=ready, oldest_wait_s=wait, num_in_flight=flying) for wait in WAITS_S]
            waits = [self.ask(policy, view) for view in views]
            for (short, before), (long, after) in itertools.pairwise(zip(WAITS_S, waits, strict=True)):
                grew = f"{policy!r} would wait {before} s after {short} s, and {after} s after {long} s"
                assert not after > before, broken(
                    f"{grew}, with {ready} ready", "or the seconds after which to ask again"
                )

    def test_step_begins_at_last(self) -> None:
        """Asked again when it said, a policy begins within ``bound_s``, or says that only the engine's limit will."""
        policy = self.policy
        for ready, flying in itertools.product(READY, IN_FLIGHT):
            waited, asked = 0.0, 0
            while 0 < (wait := self._wait(policy, ready, flying, waited)) < math.inf and asked < MOST_ASKED:
                waited, asked = waited + wait, asked + 1
            assert asked < MOST_ASKED, broken(f"{policy!r} has not begun a step after {asked} calls", WAIT)
            if self.bound_s is not None:
                is_late = wait > 0 or waited > self.bound_s + 1e-9
                fault = (
                    f"{policy!r} holds back {ready} requests for {waited + wait:g} s, and its bound is {self.bound_s:g}"
                )
                assert not is_late, broken(fault, "a step that could run is never held back for longer than a limit")

    def test_work_conserving_policy_never_waits(self) -> None:
        """If it promises that, it always answers 0."""
        for policy in self.make_policies() if self.is_work_conserving else ():
            for case in self.list_cases():
                wait = self.ask(policy, case)
                assert wait == 0, broken(f"{policy!r} calls itself work conserving, and would wait {wait} s", WAIT)

    def _wait(self, policy: Any, ready: int, flying: int, waited: float) -> float:  # noqa: ANN401 - as above
        return self.ask(policy, QueueView(num_ready=ready, oldest_wait_s=waited, num_in_flight=flying))


class PreemptionConformance(PolicyConformance[list[Holder]]):
    """Holds a preemption policy to its contract."""

    def list_cases(self) -> Sequence[list[Holder]]:
        """Return holders: none, one, equals, and many in several orders."""
        holders = [
            Holder(id=RequestId(f"request {i}"), priority=float(i % 3) - 1, arrived=float(7 * i % 5), num_tokens=9 * i)
            for i in range(6)
        ]
        equals = [dataclasses.replace(holders[0], id=RequestId(f"equal {i}")) for i in range(4)]
        orders = [list(order) for order in itertools.permutations(holders[:4])]
        return [[], holders[:1], holders, holders[::-1], equals, *orders]

    def ask(self, policy: PreemptionPolicy, case: list[Holder]) -> RequestId | None:
        """Return the chosen request."""
        return policy.choose(case)

    def test_one_of_the_holders_gives_way_or_nobody(self) -> None:
        """The answer is the id of a holder or None, and None without holders."""
        for policy in self.make_policies():
            for case in self.list_cases():
                chosen = self.ask(policy, case)
                is_there = chosen is None or chosen in {holder.id for holder in case}
                names = [holder.id for holder in case]
                assert is_there, broken(f"{policy!r} chooses {chosen!r} of {names}", HOLDER)

    def test_any_sequence_will_do(self) -> None:
        """A tuple gives the answer of a list."""
        for policy in self.make_policies():
            for case in self.list_cases():
                answers = (policy.choose(case), policy.choose(tuple(case)))
                assert answers[0] == answers[1], broken(f"{policy!r} treats a tuple and a list differently", PURE)


class RoutingConformance(PolicyConformance[tuple[ArrivalView, list[ReplicaView]]]):
    """Holds a routing policy to its contract."""

    def list_cases(self) -> Sequence[tuple[ArrivalView, list[ReplicaView]]]:
        """Return arrivals with one replica, with several, and with gaps where replicas are not ready."""
        arrivals = [ArrivalView(number=number, num_prompt=100 * number + 1, max_output=50) for number in range(7)]
        replicas = [
            ReplicaView(rank=rank, pending_tokens=pending, num_requests=pending // 100, cached_tokens=cached)
            for rank, pending, cached in ((0, 0, 0), (1, 900, 64), (2, 20_000, 4096), (5, 0, 0), (9, 10, 10**6))
        ]
        groups = [replicas, replicas[:1], replicas[2:], replicas[1:4:2], replicas[4:]]
        return [(arrival, list(group)) for arrival in arrivals for group in groups]

    def ask(self, policy: RoutingPolicy, case: tuple[ArrivalView, list[ReplicaView]]) -> int:
        """Return the rank of the replica that gets the request."""
        return policy.choose(*case)

    def test_one_of_the_replicas_is_chosen(self) -> None:
        """The answer is the rank of one that was offered; ranks may have gaps."""
        for policy in self.make_policies():
            for case in self.list_cases():
                rank = self.ask(policy, case)
                offered = [replica.rank for replica in case[1]]
                assert rank in offered, broken(f"{policy!r} chooses {rank!r} of ranks {offered}", RANK)
                assert type(rank) is int, broken(f"{policy!r} chooses {rank!r}", RANK)

    def test_any_sequence_will_do(self) -> None:
        """A tuple gives the answer of a list."""
        for policy in self.make_policies():
            for arrival, replicas in self.list_cases():
                answers = (policy.choose(arrival, replicas), policy.choose(arrival, tuple(replicas)))
                assert answers[0] == answers[1], broken(f"{policy!r} treats a tuple and a list differently", PURE)
