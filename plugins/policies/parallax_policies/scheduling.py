"""Scheduling policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.api import PromptShare, PromptView, SchedulingView


@dataclass(frozen=True, slots=True)
class ShortestFirst:
    """Serve the prompt with the fewest tokens to compute first; those that wait for long come before, by rank."""

    patience_s: float = 10.0
    """The age in seconds from which a prompt comes before shorter ones that are younger."""

    def __post_init__(self) -> None:
        if not 0 <= self.patience_s < math.inf:
            message = f"patience_s is {self.patience_s:g}; it must be 0 or more seconds"
            raise ValueError(message)

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return all prompts, the shortest first."""
        prompts = [each for each in (*view.running, *view.waiting) if each.remaining]
        prompts.sort(key=lambda each: 0 if each.age_s >= self.patience_s else each.remaining)  # else as they were
        return [PromptShare(each.index, each.remaining) for each in prompts]


@dataclass(frozen=True, slots=True)
class FairByKey:
    """Serve clients in turn, the longest unserved first, each with an equal share of a step.

    A client is an API key, or without keys an address. Of each client, prompts come in the order of the view.
    """

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return the prompts of all clients in turn."""
        prompts: dict[bytes, list[PromptView]] = {}
        for each in (*view.running, *view.waiting):
            if each.remaining:
                prompts.setdefault(each.client, []).append(each)
        idle_s = {client: max(each.age_s for each in queue) for client, queue in prompts.items()}
        for each in view.running:
            if each.client in idle_s:
                idle_s[each.client] = min(idle_s[each.client], each.begun_s)
        turns = sorted(prompts.values(), key=lambda queue: -idle_s[queue[0].client])
        left = {client: math.ceil(view.max_tokens / len(prompts)) for client in prompts}
        shares: list[PromptShare] = []
        for place in range(max(map(len, turns), default=0)):
            for queue in turns:
                if place < len(queue):
                    each = queue[place]
                    shares.append(PromptShare(each.index, min(each.remaining, left[each.client])))
                    left[each.client] -= shares[-1].tokens
        return shares
