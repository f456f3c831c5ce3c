"""The draw of `parallax_core.api.draw` for many rows at once, without sorting the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from parallax_core.api import Sampling
from parallax_sampling_torch.adjust import adjust_logits, make_column
from parallax_sampling_torch.draw_inputs import DrawInput
from parallax_sampling_torch.filters import Candidates, find_border, keep_probable
from parallax_sampling_torch.float_order import map_floats
from parallax_sampling_torch.gumbel import Noise

LOWEST = -3.4e38
"""Below every score, and above minus infinity."""
BEST = 1024
"""If filters keep at most this many tokens, noise is computed only for these."""


DrawRows = Callable[[torch.Tensor, Sequence[int], Sequence[DrawInput]], torch.Tensor | None]
"""Draws at temperatures above 0 from some rows of adjusted logits; None if it cannot."""


class Sampler:
    """Draws tokens from logits over one vocabulary.

    Args:
        vocab_size: the number of tokens.
        device: where logits are.
        draw_rows: draws faster than torch, where it can.
    """

    def __init__(self, vocab_size: int, device: torch.device, draw_rows: DrawRows | None = None) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._draw_rows = draw_rows

    def sample(
        self, given: torch.Tensor, draw_inputs: Sequence[DrawInput], best: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the drawn token ids, int64 of shape [rows].

        Args:
            given: logits, float32 of shape [rows, vocab size].
            draw_inputs: one for each row.
            best: the token with the largest logit of each row, if known.
        """
        logits = adjust_logits(given, draw_inputs)
        warm = [row for row, draw_input in enumerate(draw_inputs) if draw_input.sampling.temperature]
        if len(warm) == len(draw_inputs):
            return self._sample_warm(logits, warm, draw_inputs)
        drawn = best if best is not None and logits is given else logits.argmax(-1)
        if warm:
            drawn[warm] = self._sample_warm(logits, warm, [draw_inputs[row] for row in warm])
        return drawn

    def _sample_warm(self, logits: torch.Tensor, rows: Sequence[int], draw_inputs: Sequence[DrawInput]) -> torch.Tensor:
        """Draw from ``rows`` at temperatures above 0."""
        drawn = self._draw_rows(logits, rows, draw_inputs) if self._draw_rows else None
        if drawn is not None:
            return drawn
        return self._sample_batch(logits if len(rows) == len(logits) else logits[rows], draw_inputs)

    @cached_property
    def _noise(self) -> Noise:
        return Noise(self._vocab_size, self._device)

    def _sample_batch(self, logits: torch.Tensor, draw_inputs: Sequence[DrawInput]) -> torch.Tensor:
        """Draw from all rows, with torch."""
        samplings = [draw_input.sampling for draw_input in draw_inputs]
        temperature = make_column([sampling.temperature for sampling in samplings], logits.device)
        # The best token is moved to zero, where float32 is most precise; adding a constant changes no draw.
        largest = logits.amax(-1, keepdim=True)
        scaled = (logits - largest.clamp(min=LOWEST)) / temperature
        whole = Candidates(map_floats(logits), scaled)
        drawn = torch.zeros(len(samplings), dtype=torch.int64, device=logits.device)
        few = [row for row, sampling in enumerate(samplings) if self._may_keep_few(sampling)]
        rest = set(range(len(samplings))).difference(few)
        if few:
            drawn[few], is_enough = self._draw_best(whole.take(few), *_take(few, samplings, draw_inputs))
            rest.update(row for row, enough in zip(few, is_enough.tolist(), strict=True) if not enough)
        if wide := sorted(rest):
            drawn[wide] = self._draw_whole(whole.take(wide), *_take(wide, samplings, draw_inputs))
        return drawn.masked_fill(largest[:, 0] == -torch.inf, 0)

    def _may_keep_few(self, sampling: Sampling) -> bool:
        """Return whether filters may keep `BEST` tokens at most; what top_p keeps depends on all that top_k keeps."""
        has_filter = sampling.top_k or sampling.top_p < 1 or sampling.min_p
        return bool(has_filter) and sampling.top_k <= BEST < self._vocab_size

    def _draw_whole(
        self, whole: Candidates, samplings: Sequence[Sampling], draw_inputs: Sequence[DrawInput]
    ) -> torch.Tensor:
        """Draw among all tokens."""
        return _draw(whole, find_border(whole, whole, samplings), samplings, self._noise.make(draw_inputs))

    def _draw_best(
        self, whole: Candidates, samplings: Sequence[Sampling], draw_inputs: Sequence[DrawInput]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw among the `BEST` tokens of each row; return, too, in which rows filters keep no others."""
        # Ordered by id, so that the lowest id wins among equal scores here too.
        ids = whole.keys.topk(BEST, sorted=False).indices.sort(-1).values
        best = whole.pick(ids)
        border = find_border(best, whole, samplings)
        is_enough = border[:, 0] > best.keys.amin(-1)
        probable = keep_probable(best.scaled, samplings)
        if probable is not None:
            is_enough |= ~probable.all(-1)  # a token that is not among the best is less probable than all of them
        place = _draw(best, border, samplings, self._noise.make(draw_inputs, ids))
        return ids.gather(-1, place[:, None])[:, 0], is_enough


def _take(
    rows: Sequence[int], samplings: Sequence[Sampling], draw_inputs: Sequence[DrawInput]
) -> tuple[list[Sampling], list[DrawInput]]:
    return [samplings[row] for row in rows], [draw_inputs[row] for row in rows]


def _draw(field: Candidates, border: torch.Tensor, samplings: Sequence[Sampling], noise: torch.Tensor) -> torch.Tensor:
    """Return the index in ``field`` of the best score that filters keep, int64 of shape [rows]."""
    scores = (field.scaled + noise).clamp_(min=LOWEST)
    kept = field.keys >= border
    probable = keep_probable(field.scaled, samplings)
    if probable is not None:
        kept &= probable
    return scores.masked_fill_(~kept, -torch.inf).argmax(-1)
