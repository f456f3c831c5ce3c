"""Measures how fast a replica answers, and predicts it for other numbers of requests."""

from __future__ import annotations

from dataclasses import dataclass, field

WEIGHT = 0.02
"""The weight of a new token in the averages: about the last fifty count."""
PROMPT_WEIGHT = 0.1
"""The weight of a new prompt, of which there are fewer."""
LEAST_SPREAD = 0.05
"""The least relative variance of the number of requests for which a slope is estimated."""


@dataclass(slots=True)
class ReplicaSpeed:
    """Seconds per output token as a line over the number of requests, and seconds per prompt token.

    The line is fitted by least squares with exponentially decaying weights. A step takes a fixed time to read the
    weights, and more for each sequence in it, so a line is the right form.
    """

    prompt_token_s: float | None = None
    """Seconds to the first token for each token of the prompt and of those before it; None: not measured."""
    _means: list[float] = field(default_factory=lambda: [0.0] * 4)
    """Of the number of requests, the seconds, and their products."""
    _num_noted: int = 0

    def note_tokens(self, num_tokens: int, seconds: float, num_requests: int) -> None:
        """Note ``num_tokens`` tokens of one answer that came ``seconds`` after the one before."""
        self._num_noted += num_tokens
        each_s, weight = seconds / num_tokens, max(1 - (1 - WEIGHT) ** num_tokens, num_tokens / self._num_noted)
        values = (num_requests, each_s, num_requests * num_requests, num_requests * each_s)
        self._means = [old + weight * (new - old) for old, new in zip(self._means, values, strict=True)]

    def note_prompt(self, num_tokens: int, seconds: float) -> None:
        """Note a first token that came after ``seconds``, for a prompt with which ``num_tokens`` were computed."""
        each_s = seconds / num_tokens
        old = self.prompt_token_s
        self.prompt_token_s = each_s if old is None else old + PROMPT_WEIGHT * (each_s - old)

    def predict_token_s(self, num_requests: int) -> float | None:
        """Return the seconds per output token with ``num_requests`` requests; None: nothing was measured."""
        if not self._num_noted:
            return None
        num, each_s, square, product = self._means
        spread = square - num * num
        if spread < LEAST_SPREAD * num * num:
            return each_s
        slope = min(max((product - num * each_s) / spread, 0.0), each_s / num)
        return max(each_s + slope * (num_requests - num), 0.0)
