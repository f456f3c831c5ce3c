"""Chooses the sequences to preempt when a step runs out of pages."""

from __future__ import annotations

from collections.abc import Container, Iterable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import Holder, PreemptionPolicy
from parallax_core.engine.sequence import Sequence, UrgencyRank

MOST_WEIGHED = 2**15
"""The most holders passed to the policy in one step, over all calls."""


class Victims:
    """Asks the preemption policy for victims. It chooses a request, whose last answer is preempted.

    Each answer's holdings are described once; each call takes time proportional to the running requests.
    """

    def __init__(self, policy: PreemptionPolicy, running: Iterable[Sequence], now: float) -> None:
        """Choose among ``running``, in order of rank."""
        self._policy = policy
        self._now = now
        self._stacks: dict[RequestId, list[Sequence]] = {}
        self._holders: dict[Sequence, Holder] = {}
        self._num_weighed = 0
        for sequence in running:
            self._stacks.setdefault(sequence.request.id, []).append(sequence)

    @property
    def is_spent(self) -> bool:
        """Whether the policy was asked up to the limit for this step."""
        return self._num_weighed >= MOST_WEIGHED

    def choose(self, rank: UrgencyRank, spared: Container[Sequence]) -> Sequence | None:
        """Return the victim, below ``rank`` and not in ``spared``, or None if the policy chooses none."""
        lower = {last.request.id: last for last in self._list_last(spared) if last.rank > rank}
        self._num_weighed += 1 + len(lower)
        chosen = self._policy.choose([self._describe(last) for last in lower.values()])
        return None if chosen is None else lower[chosen]

    def _list_last(self, spared: Container[Sequence]) -> list[Sequence]:
        """Return the last preemptible answer of each request; one that is not now is not later in the step either."""
        for stack in self._stacks.values():
            while stack and (stack[-1].seq is None or stack[-1] in spared):
                stack.pop()
        return [stack[-1] for stack in self._stacks.values() if stack]

    def _describe(self, sequence: Sequence) -> Holder:
        if (holder := self._holders.get(sequence)) is None:
            holder = self._holders[sequence] = Holder(
                id=sequence.request.id,
                priority=sequence.urgency(self._now),
                arrived=sequence.arrived,
                num_tokens=sequence.num_tokens,
            )
        return holder
