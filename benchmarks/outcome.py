"""Judges a run of `benchmarks.chaos`: how soon faults were noticed, and how the requests ended."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.crowd import TOY, SentRequest

NOTICE_S = 3.0
"""Seconds within which a fault must be noticed."""
HANG_NOTICE_S = 2.0
"""Seconds after the step timeout within which a hanging step must be noticed."""
FAILING = frozenset({"memory", "nan"})
"""Faults that end only the requests of a step; no stage is lost."""
HANGING = frozenset({"event", "kernel"})
"""Faults that are noticed by the step timeout."""


@dataclass(slots=True)
class Strike:
    """A fault inflicted on a stage, with its times in seconds."""

    kind: str
    stage: int
    at: float
    noticed: float = 0.0
    reason: str = ""
    ready: float = 0.0
    rows: int = 0
    """Rows of the step that failed."""
    ordered: float = 0.0
    """When the fault was ordered: a client may see a step fail before this process sees that the order is gone."""

    @property
    def num_ending(self) -> int:
        """The number of requests that must end with an error: none if a stage is lost."""
        if self.kind not in FAILING:
            return 0
        return 1 if self.kind == "nan" else self.rows

    def is_late(self, step_timeout_s: float) -> bool:
        """Return whether the fault was noticed too late."""
        limit_s = step_timeout_s + HANG_NOTICE_S if self.kind in HANGING else NOTICE_S
        return self.noticed - self.at > limit_s


def judge(
    sent: Sequence[SentRequest],
    strikes: Sequence[Strike],
    rights: dict[tuple[int, ...], list[int]],
    step_timeout_s: float,
) -> dict[str, Any]:
    """Return the figures of a run; every figure of "faults" has to be 0.

    Args:
        sent: the requests.
        strikes: the faults inflicted on the stages, in order of time.
        rights: the expected tokens after each prompt of the real model; those of the toy are computed.
        step_timeout_s: the step timeout, in seconds.
    """
    kinds = sorted({strike.kind for strike in strikes})
    losses = [strike for strike in strikes if strike.kind not in FAILING]
    return {
        "strikes": dict(Counter(strike.kind for strike in strikes)),
        "ends": dict(Counter(each.reason or "none" for each in sent)),
        "notice_s": {
            kind: summarize(strike.noticed - strike.at for strike in strikes if strike.kind == kind) for kind in kinds
        },
        "pause_s": summarize(time_pauses(sent, losses)),
        "repair_s": summarize(strike.ready - strike.noticed for strike in losses),
        "stage_named": sum(f"stage {strike.stage} of" in strike.reason for strike in losses),
        "faults": {
            "wrong tokens": sum(is_wrong(each, rights) for each in sent),
            "without an end": sum(each.reason not in {"length", "error"} for each in sent),
            "noticed late": sum(strike.is_late(step_timeout_s) for strike in strikes),
            "faults that ended other requests than those of a failing step": count_wrong_ends(sent, strikes),
        },
    }


def is_wrong(sent: SentRequest, rights: dict[tuple[int, ...], list[int]]) -> bool:
    """Return whether a request got wrong tokens, or too few."""
    right = rights.get(sent.prompt) or TOY.continuation(sent.prompt, sent.length)
    is_whole = sent.reason != "length" or len(sent.tokens) == sent.length
    return sent.tokens != right[: len(sent.tokens)] or not is_whole


def time_pauses(sent: Sequence[SentRequest], losses: Sequence[Strike]) -> list[float]:
    """Return the longest wait for a token, in seconds, of each request that was running when a stage was lost."""
    return [each.pause_s for each in sent if any(each.began < loss.noticed < each.ended for loss in losses)]


def count_wrong_ends(sent: Sequence[SentRequest], strikes: Sequence[Strike]) -> int:
    """Return the number of faults after which other requests than those of a failing step ended with an error."""
    ends = sorted(each.ended for each in sent if each.reason == "error")
    starts = [*(strike.ordered for strike in strikes), float("inf")]
    counts = [sum(begin <= end < stop for end in ends) for begin, stop in pairwise(starts)]
    return sum(strike.num_ending != num_ended for strike, num_ended in zip(strikes, counts, strict=True))


def summarize(seconds: Iterable[float]) -> dict[str, float]:
    """Return the count, the median and the maximum."""
    kept = list(seconds)
    if not kept:
        return {"count": 0}
    return {"count": len(kept), "median": round(statistics.median(kept), 3), "most": round(max(kept), 3)}
