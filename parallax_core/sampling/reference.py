"""The sampler in plain Python: slow, obvious, and what every backend's batched sampler is tested against.

The order in which things are applied, each to what the one before left:

1. Log-probabilities that are reported are the log-softmax of the raw logits, before everything below.
2. ``repetition_penalty``, on the tokens that prompt or output hold: divides positive logits, multiplies the others.
3. ``frequency_penalty`` times a token's count in the output is subtracted, and ``presence_penalty`` where that is
   not zero.
4. ``logit_bias`` is added.
5. While the output holds fewer than ``min_tokens`` tokens, ``stop_ids`` become minus infinity.
6. What a grammar forbids becomes minus infinity.
7. Temperature 0 takes the largest logit, and the draw is over; any other divides the logits.
8. ``top_k`` keeps the k largest.
9. ``top_p`` keeps the most probable, by the softmax over what ``top_k`` kept, that sum to at least p.
10. ``min_p`` keeps those at least that times as probable as the most probable one.
11. Of what is kept, the token with the largest sum of logit and noise is drawn; see `parallax_core.sampling.draw`.

Ties at a filter's border are kept, so no filter depends on the order of tokens; ties of the final score go to the
lowest token id. A token at minus infinity is never drawn unless all are; then it is token 0. Token ids that are not in
the vocabulary have no effect.
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
    """What is known when a token is drawn."""

    sampling: Sampling
    prompt: Sequence[int]
    """Token ids of the prompt."""
    output: Sequence[int] = ()
    """Token ids after it."""
    choice: int = 0
    """Which of the answers to one request this is."""

    @property
    def position(self) -> int:
        """The position the drawn token will have in its sequence."""
        return len(self.prompt) + len(self.output)


def draw(logits: Sequence[float], draft: Draft, allowed: Collection[int] | None = None) -> int:
    """Return the token drawn after ``draft`` from raw ``logits``, one per token id.

    ``allowed`` are the tokens a grammar allows; None stands for all.
    """
    sampling = draft.sampling
    adjusted = adjust(logits, draft, allowed)
    if sampling.temperature == 0:
        return max(range(len(adjusted)), key=lambda token: (adjusted[token], -token))
    scaled = [logit / sampling.temperature for logit in adjusted]
    key = draw_key(sampling.seed, draft.position, draft.choice)
    return max(
        keep(scaled, sampling),
        key=lambda token: (scaled[token] + gumbel(hash32(key, token)), -token),
    )


def adjust(logits: Sequence[float], draft: Draft, allowed: Collection[int] | None = None) -> list[float]:
    """Return ``logits`` after penalties, bias and bans: steps 2 to 6 of the order."""
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

    top_k keeps every logit not below the k-th largest. top_p takes the softmax over those and keeps every
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
    """Return the log-softmax of raw ``logits``: the log-probabilities that are reported."""
    top = max(logits)
    total = math.log(math.fsum(math.exp(logit - top) for logit in logits))
    return [logit - top - total for logit in logits]


def best(logprobs: Sequence[float], num: int) -> tuple[tuple[int, float], ...]:
    """Return the ``num`` most probable tokens with their log-probabilities, best first, of equals the lowest id."""
    order = sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))
    return tuple((token, logprobs[token]) for token in order[:num])


def _select(tokens: Iterable[int], size: int) -> list[int]:
    return [token for token in tokens if 0 <= token < size]


def _weaken(logit: float, penalty: float) -> float:
    return logit / penalty if logit > 0 else logit * penalty


def _find_border(weights: Collection[float], top_p: float) -> float:
    """Return the largest weight for which the weights not below it sum to at least ``top_p`` of them all."""
    goal = top_p * math.fsum(weights)
    total = 0.0
    border = 0.0
    for weight in sorted(weights, reverse=True):
        total += weight
        border = weight
        if total >= goal:
            break
    return border
