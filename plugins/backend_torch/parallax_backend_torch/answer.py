"""Answers the outputs of a step from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.network import RunResult
from parallax_core.api import Output, StageResult, TensorSpec
from parallax_sampling_torch.outputs import answer_outputs, write_states
from parallax_sampling_torch.tensors import write_tensor


@dataclass(frozen=True, slots=True)
class Pending:
    """The result of a step, which may still be computing on another device."""

    found: RunResult
    outputs: Sequence[Output]
    drawn: torch.Tensor | None
    """The drawn token ids, in the order of the outputs."""
    free: tuple[int, ...]
    """Free pages of each pool after the step."""
    gives: Sequence[TensorSpec] = ()
    """What the stage gives; see `StageInfo.gives`."""

    def wait(self) -> StageResult:
        """Return the result."""
        if self.found.carried is not None:
            planes = self.found.carried.pick([spec.name for spec in self.gives])
            given = zip(planes, self.gives, strict=True)
            tensors = [write_tensor(plane.to(getattr(torch, spec.dtype))) for plane, spec in given]
            return StageResult(tensors=tuple(tensors), free=self.free)
        if self.found.logits is None:
            return StageResult(free=self.free)
        answers = answer_outputs(self.outputs, self.found.logits, self.drawn)
        return StageResult(answers, write_states(self.outputs, self.found.states), self.free)
