"""Checks which requests can be computed again on the stages of a rebuilt pipeline."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parallax_core.base.errors import InvalidRequest
from parallax_core.engine.header_budget import HeaderBudget
from parallax_core.engine.request import RequestState
from parallax_core.engine.validate import RequestValidator

MOST_REPLAYS = 4
"""How often in a row a request is replayed without gaining a token: the request itself may be what ends stages."""
MOST_UNSTARTED_REPLAYS = 2
"""The same for a request without any token. It is the likelier cause, so it ends before those that run beside it."""
REBUILT = "a stage was lost, and the pipeline that replaced it"


@dataclass(frozen=True, slots=True)
class Replay:
    """A rebuilt pipeline, on which requests are computed again from their prompts and the tokens drawn so far."""

    validator: RequestValidator
    budget: HeaderBudget

    def resume(self, state: RequestState, now: float) -> str:
        """Resume a request, its answers limited to the stages' capacity; return the reason if it cannot.

        The reason is for its client, and empty if it resumes.
        """
        state.context.timeline.resume(now)
        if state.num_losses > (MOST_REPLAYS if state.has_begun else MOST_UNSTARTED_REPLAYS):
            return f"a stage was lost {state.num_losses} times in a row while it computed this request"
        request, longest = state.request, max(answer.num_output for answer in state.live)
        try:
            room = self.validator.check(replace(request, max_tokens=None, default_max_tokens=None))
            self.budget.check_request(request)
        except InvalidRequest as error:
            return f"{REBUILT} cannot serve this request: {error.message}"
        if longest >= room:
            tokens = f"{len(request.prompt)} tokens and {longest} of its answer"
            return f"{REBUILT} holds {self.validator.max_length} tokens; this request has {tokens}"
        state.limit_output(room)
        return ""
