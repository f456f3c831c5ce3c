"""Scheduling policies that give every valid answer, or invalid ones, as chance has it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from parallax_core.api import PromptShare, SchedulingView


@dataclass
class AnyOrder:
    """Names some prompts in any order, each with any number of tokens."""

    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        prompts = [*view.running, *view.waiting]
        self.draw.shuffle(prompts)
        named = prompts[: self.draw.randint(0, len(prompts))]
        return [PromptShare(each.index, self.draw.randint(0, each.remaining)) for each in named]


@dataclass
class Faulty:
    """Gives any of `FAULTS` or an answer of `AnyOrder`."""

    valid: AnyOrder = field(default_factory=AnyOrder)

    def order(self, view: SchedulingView) -> Sequence[PromptShare]:
        draw = self.valid.draw
        match draw.choice(["raise", "unknown", "twice", "negative", "large", "kind", "valid"]):
            case "raise":
                raise RuntimeError("no order today")
            case "unknown":
                return [PromptShare(len(view.running) + len(view.waiting), 1)]
            case "twice":
                return [PromptShare(0, 0), PromptShare(0, 0)]
            case "negative":
                return [PromptShare(0, -1)]
            case "large":
                return [PromptShare(0, 10**9)]
            case "kind":
                wrong: Any = draw.choice([None, 3, "order", {0: 1}, [0], [(0,)], [(0, True)], [("0", 1)], [(0.0, 1.0)]])
                return cast("Sequence[PromptShare]", wrong)
        return self.valid.order(view)
