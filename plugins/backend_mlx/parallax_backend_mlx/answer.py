"""Answers the outputs of a step from its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parallax_backend_mlx.runtime import mx
from parallax_backend_mlx.sampling import Sampler
from parallax_core.api import Draft, Draw, Output


def draw_tokens(sampler: Sampler, logits: mx.array, outputs: Sequence[Output], drafts: Sequence[Draft]) -> list[int]:
    """Return the drawn token ids, one for each draft.

    Args:
        sampler: of the vocabulary.
        logits: shape [outputs, vocab_size].
        outputs: the output of each row of ``logits``.
        drafts: those of the outputs that are draws, in order: `Draw.count` for each.
    """
    if not drafts:
        return []
    counts = [output.count if isinstance(output, Draw) else 0 for output in outputs]
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    chosen = logits if places == list(range(len(outputs))) else logits[mx.array(places)]
    tokens: Any = sampler.sample(chosen, drafts).tolist()
    return list(tokens)
