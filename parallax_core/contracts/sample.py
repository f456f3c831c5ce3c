"""How the next token of a sequence is chosen."""

from __future__ import annotations

import msgspec


class Sampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The sampling of one sequence. `parallax_core.sampling` defines the arithmetic and the order of what is applied.

    Whoever takes values from outside checks them; stages rely on the ranges given here. Crosses the wire once, when a
    sequence is opened.
    """

    temperature: float = 1.0
    """At least 0; 0 takes the most probable token."""
    top_k: int = 0
    """Keep the k most probable tokens and all that tie with the last of them; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most probable tokens whose probabilities sum to at least this; in (0, 1]."""
    min_p: float = 0.0
    """Keep the tokens at least this times as probable as the most probable one; in [0, 1]."""
    seed: int = 0
    """In ``range(2**64)``: the same seed gives the same tokens, alone or in a batch."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token the output holds."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time the output holds it."""
    repetition_penalty: float = 1.0
    """Above 0: divides the positive logits of tokens that prompt or output hold, and multiplies the negative ones."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each once, and what is added to their logits; minus infinity forbids a token."""
    min_tokens: int = 0
    """None of ``stop_ids`` is drawn before the output holds this many tokens."""
    stop_ids: tuple[int, ...] = ()
    """The token ids ``min_tokens`` speaks of."""
