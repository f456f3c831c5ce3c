"""Answers the outputs of a step from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from parallax_backend_torch.network import RunResult
from parallax_backend_torch.ranking import rank_tokens
from parallax_backend_torch.tensors import write_tensor
from parallax_core.api import Draw, Hidden, Output, StageResult, Tensor, make_answers


@dataclass(frozen=True, slots=True)
class Pending:
    """The result of a step, which may still be computing on another device."""

    found: RunResult
    outputs: Sequence[Output]
    drawn: torch.Tensor | None
    """The drawn token ids, in the order of the outputs."""
    free: tuple[int, ...]
    """Free pages of each pool after the step."""

    def wait(self) -> StageResult:
        """Return the result."""
        if self.found.hidden is not None:
            return StageResult(tensors=(write_tensor(self.found.hidden),), free=self.free)
        if self.found.logits is None:
            return StageResult(free=self.free)
        tokens: list[int] = [] if self.drawn is None else self.drawn.tolist()
        return StageResult(
            make_answers(self.outputs, tokens, partial(rank_tokens, self.found.logits)), self._write_states(), self.free
        )

    def _write_states(self) -> tuple[Tensor, ...]:
        states = self.found.states
        asked = [place for place, output in enumerate(self.outputs) if isinstance(output, Hidden)]
        if states is None or not asked:
            return ()
        return tuple(write_tensor(states[place].float()) for place in asked)


def place_draws(outputs: Sequence[Output]) -> list[int]:
    """Return for each draw the index of its output in ``outputs``."""
    return [place for place, output in enumerate(outputs) if isinstance(output, Draw) for _ in range(output.count)]
