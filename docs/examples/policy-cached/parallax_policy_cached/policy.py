"""The decision: a prompt of which little is left to compute comes first, while its cache is still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.api import PromptShare, PromptView, SchedulingView


@dataclass(frozen=True, slots=True)
class CachedFirst:
    """Serve the prompt first of which the smallest part is left to compute, each whole.

    A prompt that has waited for ``patience_s`` seconds comes before all younger ones, so that none starves.
    """

    patience_s: float = 10.0

    def __post_init__(self) -> None:
        """Refuse options that make no sense, as users may give any."""
        if not 0 <= self.patience_s < float("inf"):
            raise ValueError(f"patience_s is {self.patience_s:g}; it must be 0 or more seconds")

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        """Return all prompts in order; see `parallax_core.api.SchedulingPolicy`."""
        prompts = [each for each in (*view.running, *view.waiting) if each.remaining]
        prompts.sort(key=self._find_place)  # equals stay in the order of the view
        return [PromptShare(each.index, each.remaining) for each in prompts]

    def _find_place(self, prompt: PromptView) -> float:
        return 0.0 if prompt.age_s >= self.patience_s else prompt.remaining / prompt.num_prompt
