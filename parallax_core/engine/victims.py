"""Who gives way in a step whose pages run out."""

from __future__ import annotations

from collections.abc import Container, Iterable

from parallax_core.base.ids import RequestId
from parallax_core.contracts.policy import Holder, PreemptionPolicy
from parallax_core.engine.sequence import Rank, Sequence

MOST_WEIGHED = 2**15
"""Holders that a policy is shown in one step, summed over the times it is asked."""


class Victims:
    """Asks a policy for one victim after the other. A policy chooses among requests; of one, the last answer gives way.

    What each answer holds is described once, and every question costs time in the requests that run.
    """

    def __init__(self, policy: PreemptionPolicy, running: Iterable[Sequence], now: float) -> None:
        """Choose among ``running``, which are in order of rank."""
        self._policy = policy
        self._now = now
        self._stacks: dict[RequestId, list[Sequence]] = {}
        self._holders: dict[Sequence, Holder] = {}
        self._num_weighed = 0
        for sequence in running:
            self._stacks.setdefault(sequence.request.id, []).append(sequence)

    @property
    def is_spent(self) -> bool:
        """Whether the policy was asked enough for one step."""
        return self._num_weighed >= MOST_WEIGHED

    def choose(self, rank: Rank, spared: Container[Sequence]) -> Sequence | None:
        """Return who gives way to a sequence of a rank, of those below it and not ``spared``; None: nobody."""
        lower = {last.request.id: last for last in self._list_last(spared) if last.rank > rank}
        self._num_weighed += 1 + len(lower)
        chosen = self._policy.choose([self._describe(last) for last in lower.values()])
        return None if chosen is None else lower[chosen]

    def _list_last(self, spared: Container[Sequence]) -> list[Sequence]:
        """Return the last answer of each request that could give way; who cannot now cannot later in the step."""
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
