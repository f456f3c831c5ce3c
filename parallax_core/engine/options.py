"""Holds the options of a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parallax_core.builtin.batching import WorkConserving
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.contracts.policy import BatchingPolicy, PreemptionPolicy, SchedulingPolicy
from parallax_core.engine.limits import Limits
from parallax_core.engine.prompt_order import PromptOrder
from parallax_core.engine.timing import Timer, stand_still


def ignore(fault: str) -> None:
    """Note nothing."""
    del fault


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOptions:
    """The options of a head, apart from its stages and its tokenizer."""

    limits: Limits = field(default_factory=Limits)
    batching: BatchingPolicy = field(default_factory=WorkConserving)
    """Decides when a step begins."""
    scheduling: SchedulingPolicy = field(default_factory=PriorityOrder)
    """Chooses whose prompts are in the step. Its answers must be valid: see `SchedulingGuard`."""
    note_scheduling_fault: Callable[[str], None] = ignore
    """Called with what that policy does wrong although each answer is valid."""
    preemption: PreemptionPolicy = field(default_factory=LowestPriority)
    """Chooses the request to preempt when memory runs out."""
    target_itl_s: float | None = None
    """The most seconds between two tokens of an answer for the sake of prompts; None: see `Pacer`; infinity: any."""
    timer: Timer = stand_still
    """Measures detokenizing, in seconds; the head has no clock of its own."""

    def make_order(self) -> PromptOrder:
        """Return the order of prompts, as the scheduling policy has it."""
        return PromptOrder(self.scheduling, self.note_scheduling_fault)
