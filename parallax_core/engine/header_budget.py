"""Budgets the frame headers of a step and its result, so that neither exceeds what a receiver accepts."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listing
from dataclasses import dataclass
from typing import NoReturn

import msgspec

from parallax_core.base.errors import InvalidRequest
from parallax_core.base.ids import SeqId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.stage import Fork, SequenceSpec, StageInfo
from parallax_core.contracts.transport import FrameLimits
from parallax_core.wire.size import (
    DRAW,
    DROP,
    ENTRY,
    HIDDEN,
    ROW,
    SCORE,
    STATE,
    TOKEN,
    bound_drawn,
    bound_edit,
    bound_envelope,
    bound_scored,
)


@dataclass(frozen=True, slots=True)
class RowCost:
    """The most bytes that the rows of a request take in the headers of a step and of its result."""

    begin: int
    """Bytes in the step to open or fork a sequence and give it a row of one token."""
    token: int
    """Bytes in the step per token of the prompt."""
    scored: int
    """Bytes in the result per token of the prompt."""
    first_draw: int
    """Bytes in the result for the draw that begins all answers."""
    next_draw: int
    """Bytes in the result for each later draw."""
    num_states: int = 0
    """The most tensors of hidden states in the result for a row."""


INHERIT = bound_edit(Fork(SeqId(0), SeqId(0), 0))
"""Bytes that a fork with the spec of its source takes in a step."""
FIXED = ROW + DRAW + HIDDEN
"""Bytes that a row takes in a step besides its tokens."""
MOST_STATES = FrameLimits().buffers
"""The most tensors of hidden states in a result."""


def weigh_rows(request: Request) -> RowCost:
    """Return the bytes that the rows of a request take."""
    is_scored = request.prompt_logprobs is not None
    top = -1 if request.logprobs is None else request.logprobs
    token = TOKEN + (SCORE if is_scored else 0)
    return RowCost(
        begin=bound_edit(Fork(SeqId(0), SeqId(0), 0, 0, make_spec(request))) + FIXED + token,
        token=token,
        scored=bound_scored(request.prompt_logprobs or 0) if is_scored else 0,
        first_draw=bound_drawn(request.n, top) + (STATE + ENTRY if request.pooling else 0),
        next_draw=bound_drawn(1, top),
        num_states=1 if request.pooling else 0,
    )


def make_spec(request: Request) -> SequenceSpec:
    """Return the spec of a request's sequences for the stages.

    Under a grammar, the masks keep an answer from ending too early: a stage cannot know where it must end.
    """
    sampling = request.sampling
    if request.grammar is not None:
        sampling = msgspec.structs.replace(sampling, min_tokens=0, stop_ids=())
    return SequenceSpec(
        prompt_length=len(request.prompt),
        sampling=sampling,
        adapter=request.adapter,
        priority=request.priority,
        salt=request.salt,
    )


class HeaderBudget:
    """The bytes left in the headers of the step that is being planned and of its result.

    Bytes to drop every running sequence are reserved, since that must be possible at any time.
    """

    def __init__(self, stages: Listing[StageInfo], header_bytes: int, max_running: int) -> None:
        self.most_in_result = header_bytes - bound_envelope(stages)
        self.most_in_step = self.most_in_result - max_running * DROP
        self.reset()

    def reset(self) -> None:
        """Start the budget of another step."""
        self._step, self._result, self._num_states = self.most_in_step, self.most_in_result, MOST_STATES

    def fits(self, num_bytes: int) -> bool:
        """Return whether ``num_bytes`` more fit into the step."""
        return num_bytes <= self._step

    def take(self, in_step: int, in_result: int = 0) -> None:
        """Use bytes of the step and of its result."""
        self._step -= in_step
        self._result -= in_result

    def limit_row(self, cost: RowCost, draw: int, num_tokens: int) -> int:
        """Return the number of tokens, at most ``num_tokens``, that the next row may have; 0: it does not fit.

        Args:
            cost: the cost of the request's rows.
            draw: the bytes that a draw of the row takes in the result.
            num_tokens: the wanted number, at least 1.
        """
        in_step, in_result = self._step - FIXED - cost.token, self._result - draw - cost.scored
        if in_step < 0 or in_result < 0 or cost.num_states > self._num_states:
            return 0
        num_tokens = min(num_tokens, 1 + in_step // cost.token)
        return min(num_tokens, 1 + in_result // cost.scored) if cost.scored else num_tokens

    def take_row(self, cost: RowCost, draw: int, num_tokens: int) -> None:
        """Use the bytes of a row of ``num_tokens`` tokens."""
        self.take(FIXED + num_tokens * cost.token, draw + num_tokens * cost.scored)
        self._num_states -= cost.num_states

    def check_request(self, request: Request) -> None:
        """Refuse a request whose first step does not fit into a frame, even alone.

        Raises:
            InvalidRequest: naming the field that takes the most.
        """
        cost = weigh_rows(request)
        in_step = {
            "logit_bias": len(request.sampling.logit_bias),
            "stop_ids": len(request.sampling.stop_ids),
            "salt": len(request.salt),
            "adapter": len(request.adapter),
        }
        in_result = {"logprobs": request.logprobs or 0, "prompt_logprobs": request.prompt_logprobs or 0, "n": request.n}
        if cost.begin > self.most_in_step:
            _refuse(in_step)
        if cost.first_draw + cost.scored > self.most_in_result:
            _refuse(in_result)


def _refuse(sizes: Mapping[str, int]) -> NoReturn:
    """Raise InvalidRequest for the field with the largest size."""
    name = max(sizes, key=sizes.__getitem__)
    words = name.replace("_", " ")
    message = f"the {words} of the request are too large: {sizes[name]} do not fit into a frame between nodes"
    raise InvalidRequest(message, name, "ask for fewer")
