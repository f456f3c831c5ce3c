"""The routing policy that chooses by the expected finish of the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from parallax_core.api import ArrivalView, ReplicaView

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1
CACHED = attrgetter("cached_tokens")
UNKNOWN_S = 1e-6
"""Seconds per token assumed of an unmeasured replica: it is tried soon, the less loaded one first."""


@dataclass(frozen=True, slots=True)
class LeastFinishTime:
    """Choose, of a few replicas drawn for the request, the one that will finish it first.

    A few drawn replicas are nearly as good as all, and requests that arrive together do not all take the same one (the
    power of two choices: Mitzenmacher, IEEE TPDS 2001). Where some replicas are much slower than others, two are too
    few. The replica with most of the prompt cached is always one of them.
    """

    choices: int = 8
    """The replicas to draw; 0: compare all."""

    def __post_init__(self) -> None:
        if self.choices < 0:
            message = f"choices is {self.choices}; it must be 0 or more"
            raise ValueError(message)

    def choose(self, arrival: ArrivalView, replicas: Sequence[ReplicaView]) -> int:
        """Return the rank of the replica with the least expected finish, among equals the first."""
        drawn = _draw(replicas, self.choices, arrival.number) if 0 < self.choices < len(replicas) else replicas
        known = [each_s for each in drawn if (each_s := each.token_s) is not None]
        default_s = min(known, default=UNKNOWN_S)
        return min(drawn, key=lambda each: (_expect(arrival, each, default_s), each.pending_tokens, each.rank)).rank


def _draw(replicas: Sequence[ReplicaView], number: int, arrival: int) -> list[ReplicaView]:
    """Return different replicas drawn by a hash of the arrival, and the one with the longest cached prefix."""
    left = list(range(len(replicas)))
    drawn = [replicas[left.pop(_mix(arrival * GOLDEN + turn) % len(left))] for turn in range(number)]
    if not any(map(CACHED, replicas)):
        return drawn
    best = max(replicas, key=CACHED)
    return drawn if best in drawn else [*drawn, best]


def _mix(value: int) -> int:
    """Return 64 well mixed bits (the finaliser of SplitMix64: Steele et al., OOPSLA 2014)."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def _expect(arrival: ArrivalView, replica: ReplicaView, default_s: float) -> float:
    """Return the seconds until the replica would have answered: prompts before it, its own, then token by token."""
    token_s = replica.token_s if replica.token_s is not None else default_s
    prompt_s = replica.prompt_token_s or 0.0
    own = max(arrival.num_prompt - replica.cached_tokens, 1)
    return (replica.pending_prompt + own) * prompt_s + arrival.max_output * token_s
