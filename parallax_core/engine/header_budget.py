"""Room in the headers of frames: no step, and no result of one, is ever larger than a receiver is ready to hold."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import NoReturn

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.stage import Fork, SequenceSpec, StageInfo
from parallax_core.wire.size import (
    DRAW,
    DROP,
    ROW,
    SCORE,
    TOKEN,
    bound_drawn,
    bound_edit,
    bound_envelope,
    bound_scored,
)


@dataclass(frozen=True, slots=True)
class RowCost:
    """What the rows of a request take of a step and of its result, in bytes at the most."""

    begin: int
    """Of the step, to open or fork a sequence and give it a row of a token."""
    token: int
    """Of the step, each token of the prompt."""
    scored: int
    """Of the result, each token of the prompt."""
    first_draw: int
    """Of the result, the draw that begins all answers."""
    next_draw: int
    """Of the result, each draw after that."""


INHERIT = bound_edit(Fork(SeqId(0), SeqId(0), 0))
"""What a fork that inherits what holds for its source takes of a step."""
FIXED = ROW + DRAW
"""What a row takes of a step beside its tokens."""


def weigh_rows(request: Request) -> RowCost:
    """Return what the rows of a request take."""
    is_scored = request.prompt_logprobs is not None
    top = -1 if request.logprobs is None else request.logprobs
    token = TOKEN + (SCORE if is_scored else 0)
    return RowCost(
        begin=bound_edit(Fork(SeqId(0), SeqId(0), 0, 0, make_spec(request))) + FIXED + token,
        token=token,
        scored=bound_scored(request.prompt_logprobs or 0) if is_scored else 0,
        first_draw=bound_drawn(request.n, top),
        next_draw=bound_drawn(1, top),
    )


def make_spec(request: Request) -> SequenceSpec:
    """Return what the stages are told of a request."""
    return SequenceSpec(
        prompt_length=len(request.prompt),
        sampling=request.sampling,
        adapter=request.adapter,
        priority=request.priority,
        salt=request.salt,
    )


class HeaderBudget:
    """What is left in the header of a step that is being planned, and in that of its result.

    A part of it is set aside for dropping every sequence that runs, which has to be possible at any time.
    """

    def __init__(self, stages: Listing[StageInfo], header_bytes: int, max_running: int) -> None:
        self.most_in_result = header_bytes - bound_envelope(stages)
        self.most_in_step = self.most_in_result - max_running * DROP
        self.reset()

    def reset(self) -> None:
        """Begin another step."""
        self._step, self._result = self.most_in_step, self.most_in_result

    def fits(self, num_bytes: int) -> bool:
        """Whether so much more fits into the step."""
        return num_bytes <= self._step

    def take(self, in_step: int, in_result: int = 0) -> None:
        """Use so much of what is left."""
        self._step -= in_step
        self._result -= in_result

    def limit_row(self, cost: RowCost, draw: int, num_tokens: int) -> int:
        """Return how many of so many tokens the next row may have; 0: there is no room for it.

        Args:
            cost: of the request's rows.
            draw: what a draw of the row takes of the result.
            num_tokens: at least 1.
        """
        in_step, in_result = self._step - FIXED - cost.token, self._result - draw - cost.scored
        if in_step < 0 or in_result < 0:
            return 0
        num_tokens = min(num_tokens, 1 + in_step // cost.token)
        return min(num_tokens, 1 + in_result // cost.scored) if cost.scored else num_tokens

    def take_row(self, cost: RowCost, draw: int, num_tokens: int) -> None:
        """Use what a row of so many tokens takes."""
        self.take(FIXED + num_tokens * cost.token, draw + num_tokens * cost.scored)

    def check_request(self, request: Request) -> None:
        """Refuse a request whose first step no frame could carry, even alone.

        Raises:
            InvalidRequest: naming the field that takes the most.
        """
        cost = weigh_rows(request)
        in_step = {
            "logit_bias": len(request.sampling.logit_bias),
            "stop_token_ids": len(request.sampling.stop_ids),
            "salt": len(request.salt),
            "model": len(request.adapter),
        }
        in_result = {
            "logprobs": request.logprobs or 0,
            "prompt_logprobs": request.prompt_logprobs or 0,
            "n": request.n,
        }
        if cost.begin > self.most_in_step:
            _refuse(in_step)
        if cost.first_draw + cost.scored > self.most_in_result:
            _refuse(in_result)


def _refuse(sizes: Mapping[str, int]) -> NoReturn:
    """Name the largest of some fields, by how much each holds."""
    name = max(sizes, key=sizes.__getitem__)
    message = f"{name} is too large: what {sizes[name]} of it take does not fit into a frame between nodes"
    raise InvalidRequest(message, name, "ask for less of it")
