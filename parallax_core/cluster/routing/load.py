"""Counts the load of a replica, request by request, and measures its speed from the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

from parallax_core.cluster.routing.speed import ReplicaSpeed
from parallax_core.contracts.policy import ArrivalView, ReplicaView


@dataclass(slots=True)
class ReplicaLoad:
    """The load of one replica, and its measured speed. Times are seconds of the caller's clock."""

    rank: int
    pending_tokens: int = 0
    """Tokens it has yet to compute: prompts without an answer, and the most that the answers may still need."""
    pending_prompt: int = 0
    """The part of them that belongs to prompts."""
    num_requests: int = 0
    speed: ReplicaSpeed = field(default_factory=ReplicaSpeed)

    def view(self, cached_tokens: int, *, is_suspected: bool = False) -> ReplicaView:
        """Return the replica's view for a routing policy."""
        return ReplicaView(
            rank=self.rank,
            pending_tokens=self.pending_tokens,
            num_requests=self.num_requests,
            cached_tokens=cached_tokens,
            pending_prompt=self.pending_prompt,
            token_s=self.speed.predict_token_s(self.num_requests + 1),
            prompt_token_s=self.speed.prompt_token_s,
            is_suspected=is_suspected,
        )


class RequestLoad:
    """The load of one request on its replica: its prompt until an answer begins, and the rest of its answers."""

    def __init__(
        self, load: ReplicaLoad, arrival: ArrivalView, num_answers: int, *, now: float, cached: int = 0
    ) -> None:
        """Add a request that arrives at ``now``, with ``cached`` tokens of its prompt probably computed before."""
        self._load = load
        self._prompt = arrival.num_prompt
        self._answers = [arrival.max_output // num_answers] * num_answers
        self._is_held = True
        self._ahead = load.pending_prompt + max(arrival.num_prompt - cached, 1)
        self._latest = now
        """When it arrived, or a token of it came last."""
        load.pending_tokens += self._prompt + sum(self._answers)
        load.pending_prompt += self._prompt
        load.num_requests += 1

    def note(self, index: int, num_tokens: int, now: float, *, has_ended: bool = False) -> None:
        """Subtract tokens of an answer that came at ``now``; the rest of it too if the answer has ended."""
        if not self._is_held:
            return
        self._measure(num_tokens, now)
        rest = self._answers[index]
        done = rest if has_ended else min(rest, num_tokens)
        self._answers[index] = rest - done
        self._load.pending_tokens -= self._prompt + done
        self._load.pending_prompt -= self._prompt
        self._prompt = 0

    def release(self) -> None:
        """Subtract the rest of the load. Idempotent."""
        if self._is_held:
            self._is_held = False
            self._load.pending_tokens -= self._prompt + sum(self._answers)
            self._load.pending_prompt -= self._prompt
            self._load.num_requests -= 1

    def _measure(self, num_tokens: int, now: float) -> None:
        if self._prompt:
            self._load.speed.note_prompt(self._ahead, now - self._latest)
        elif num_tokens and len(self._answers) == 1:
            self._load.speed.note_tokens(num_tokens, now - self._latest, self._load.num_requests)
        self._latest = now
