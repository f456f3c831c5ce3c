"""The reference sampler in plain Python; every backend's batched sampler is tested against it.

The order of the operations, each applied to the result of the one before:

1. Tokens that the mask of a draw forbids become minus infinity; see `parallax_core.sampling.masks`.
2. Reported log-probabilities are the log-softmax of these logits, before everything below.
3. ``repetition_penalty``, for the tokens in the prompt or output: divides positive logits, multiplies the others.
4. ``frequency_penalty`` times a token's count in the output is subtracted, and ``presence_penalty`` if the count is
   not zero.
5. ``logit_bias`` is added.
6. While the output holds fewer than ``min_tokens`` tokens, ``stop_ids`` become minus infinity.
7. Temperature 0 takes the largest logit and ends the draw; any other temperature divides the logits.
8. ``top_k`` keeps the k largest.
9. ``top_p`` keeps the most probable tokens, by the softmax over those that ``top_k`` kept, that sum to at least p.
10. ``min_p`` keeps the tokens at least that many times as probable as the most probable one.
11. Of the kept tokens, the one with the largest sum of logit and noise is drawn; see `parallax_core.sampling.draw`.

Ties at a filter's threshold are kept, so no filter depends on the order of tokens; ties of the final score go to the
lowest token id. A token at minus infinity is never drawn unless all are at minus infinity; then token 0 is drawn. Token
ids outside the vocabulary have no effect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from parallax_core.contracts.sample import Sampling
from parallax_core.sampling.draw import draw_key, gumbel, hash32


@dataclass(frozen=True, slots=True)
class Draft:
    """The input of a draw, besides the logits."""

    sampling: Sampling
    prompt: Sequence[int]
    """The token ids of the prompt."""
    output: Sequence[int] = ()
    """The token ids after the prompt."""
    choice: int = 0
    """The index of the answer among those to one request."""

    @property
    def position(self) -> int:
        """The position the drawn token will have in its sequence."""
        return len(self.prompt) + len(self.output)


def draw(logits: Sequence[float], draft: Draft, allowed: Collection[int] | None = None) -> int:
    """Return the token drawn after ``draft`` from raw ``logits``, one per token id.

    ``allowed`` are the tokens that a grammar allows; None: all.
    """
    sampling = draft.sampling
    adjusted = adjust(logits, draft, allowed)
    if sampling.temperature == 0:
        return max(range(len(adjusted)), key=lambda token: (adjusted[token], -token))
    scaled = [logit / sampling.temperature for logit in adjusted]
    key = draw_key(sampling.seed, draft.position, draft.choice)
    return max(keep(scaled, sampling), key=lambda token: (scaled[token] + gumbel(hash32(key, token)), -token))


def adjust(logits: Sequence[float], draft: Draft, allowed: Collection[int] | None = None) -> list[float]:
    """Return ``logits`` after penalties, bias and bans: steps 1 and 3 to 6 of the order."""
    sampling, size = draft.sampling, len(logits)
    adjusted = list(logits)
    if sampling.repetition_penalty != 1:
        for token in _select({*draft.prompt, *draft.output}, size):
            adjusted[token] = _weaken(adjusted[token], sampling.repetition_penalty)
    counts = Counter(draft.output)
    for token in _select(counts, size):
        adjusted[token] -= sampling.frequency_penalty * counts[token] + sampling.presence_penalty
    biases = dict(sampling.logit_bias)
    for token in _select(biases, size):
        adjusted[token] += biases[token]
    if len(draft.output) < sampling.min_tokens:
        for token in _select(sampling.stop_ids, size):
            adjusted[token] = -math.inf
    if allowed is not None:
        adjusted = [logit if token in allowed else -math.inf for token, logit in enumerate(adjusted)]
    return adjusted


def keep(scaled: Sequence[float], sampling: Sampling) -> list[int]:
    """Return the token ids that pass the filters, steps 8 to 10, given logits already divided by the temperature.

    top_k keeps every logit not below the k-th largest. top_p takes the softmax over the kept ones and keeps every
    probability not below t, where t is the largest value for which the kept probabilities sum to at least top_p.
    """
    kept = [token for token, logit in enumerate(scaled) if logit > -math.inf]
    if not kept:
        return [0]
    if 0 < sampling.top_k < len(kept):
        border = sorted(scaled, reverse=True)[sampling.top_k - 1]
        kept = [token for token in kept if scaled[token] >= border]
    top = max(scaled)
    weights = {token: math.exp(scaled[token] - top) for token in kept}
    border = _find_border(weights.values(), sampling.top_p) if sampling.top_p < 1 else 0.0
    return [token for token in kept if weights[token] >= max(border, sampling.min_p)]


def logprobs(logits: Sequence[float]) -> list[float]:
    """Return the log-softmax of raw ``logits``: the reported log-probabilities."""
    top = max(logits)
    total = math.log(math.fsum(math.exp(logit - top) for logit in logits))
    return [logit - top - total for logit in logits]


def best(logprobs: Sequence[float], num: int) -> tuple[tuple[int, float], ...]:
    """Return the ``num`` most probable tokens with their log-probabilities, best first; ties by the lowest id."""
    order = sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))
    return tuple((token, logprobs[token]) for token in order[:num])


def _select(tokens: Iterable[int], size: int) -> list[int]:
    return [token for token in tokens if 0 <= token < size]


def _weaken(logit: float, penalty: float) -> float:
    return logit / penalty if logit > 0 else logit * penalty


def _find_border(weights: Collection[float], top_p: float) -> float:
    """Return the largest weight for which the weights not below it sum to at least ``top_p`` of the total."""
    goal = top_p * math.fsum(weights)
    total = 0.0
    border = 0.0
    for weight in sorted(weights, reverse=True):
        total += weight
        border = weight
        if total >= goal:
            break
    return border
