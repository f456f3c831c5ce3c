"""What came of faults, and of the requests that met them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.crowd import TOY, Asked

NOTICE_S = 3.0
"""How soon a fault must be noticed,"""
HANG_NOTICE_S = 2.0
"""and how soon after its limit a step that hangs."""
FAILING = frozenset({"memory", "nan"})
"""The faults by which only requests of a step end, and no stage is lost."""
HANGING = frozenset({"event", "kernel"})
"""Those that are noticed by how long the step has been computed."""


@dataclass(slots=True)
class Strike:
    """Something that was done to a stage."""

    kind: str
    stage: int
    at: float
    noticed: float = 0.0
    reason: str = ""
    ready: float = 0.0
    rows: int = 0
    """Of the step that failed."""

    @property
    def num_ending(self) -> int:
        """How many requests end with an error: those of a step that fails, and none where a stage is lost."""
        if self.kind not in FAILING:
            return 0
        return 1 if self.kind == "nan" else self.rows

    def is_late(self, step_timeout_s: float) -> bool:
        """Whether it was noticed too late."""
        limit_s = step_timeout_s + HANG_NOTICE_S if self.kind in HANGING else NOTICE_S
        return self.noticed - self.at > limit_s


def judge(
    asked: Sequence[Asked], strikes: Sequence[Strike], rights: dict[tuple[int, ...], list[int]], step_timeout_s: float
) -> dict[str, Any]:
    """Return what came of the requests; every figure of "faults" has to be 0.

    Args:
        asked: the requests.
        strikes: what was done to the stages, in the order of time.
        rights: the tokens that must follow prompts of the model; those of the toy are computed.
        step_timeout_s: how long a step may be computed.
    """
    kinds = sorted({strike.kind for strike in strikes})
    losses = [strike for strike in strikes if strike.kind not in FAILING]
    return {
        "strikes": dict(Counter(strike.kind for strike in strikes)),
        "ends": dict(Counter(each.reason or "none" for each in asked)),
        "notice_s": {
            kind: summarize(strike.noticed - strike.at for strike in strikes if strike.kind == kind) for kind in kinds
        },
        "pause_s": summarize(time_pauses(asked, losses)),
        "repair_s": summarize(strike.ready - strike.noticed for strike in losses),
        "stage_named": sum(f"stage {strike.stage} of" in strike.reason for strike in losses),
        "faults": {
            "wrong tokens": sum(is_wrong(each, rights) for each in asked),
            "without an end": sum(each.reason not in {"length", "error"} for each in asked),
            "noticed late": sum(strike.is_late(step_timeout_s) for strike in strikes),
            "faults that ended other requests than those of a failing step": count_wrong_ends(asked, strikes),
        },
    }


def is_wrong(asked: Asked, rights: dict[tuple[int, ...], list[int]]) -> bool:
    """Return whether the tokens of a request are not what they must be."""
    right = rights.get(asked.prompt) or TOY.continuation(asked.prompt, asked.length)
    is_whole = asked.reason != "length" or len(asked.tokens) == asked.length
    return asked.tokens != right[: len(asked.tokens)] or not is_whole


def time_pauses(asked: Sequence[Asked], losses: Sequence[Strike]) -> list[float]:
    """Return the longest wait for a token of each request that met a loss."""
    return [each.pause_s for each in asked if any(each.began < loss.noticed < each.ended for loss in losses)]


def count_wrong_ends(asked: Sequence[Asked], strikes: Sequence[Strike]) -> int:
    """Return after how many strikes not just the requests of a failing step ended with an error."""
    ends = sorted(each.ended for each in asked if each.reason == "error")
    starts = [*(strike.at for strike in strikes), float("inf")]
    counts = [sum(begin <= end < stop for end in ends) for begin, stop in pairwise(starts)]
    return sum(strike.num_ending != num_ended for strike, num_ended in zip(strikes, counts, strict=True))


def summarize(seconds: Iterable[float]) -> dict[str, float]:
    """Return how many there are, the middle one and the longest."""
    kept = list(seconds)
    if not kept:
        return {"count": 0}
    return {"count": len(kept), "median": round(statistics.median(kept), 3), "most": round(max(kept), 3)}
