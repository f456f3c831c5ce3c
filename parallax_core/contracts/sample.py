"""How the next token of a sequence is chosen."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.value import Bias, Count, Finite, Positive, Seed, Value, Weight


class Sampling(Value, frozen=True, kw_only=True):
    """The sampling of one sequence. `parallax_core.sampling` defines the arithmetic and the order of what is applied.

    Whoever takes values from outside checks them; stages rely on the ranges given here, which a reader of frames
    checks. Crosses the wire once, when a sequence is opened.
    """

    temperature: Weight = 1.0
    """At least 0; 0 takes the most probable token."""
    top_k: Count = 0
    """Keep the k most probable tokens and all that tie with the last of them; 0 keeps all."""
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the most probable tokens whose probabilities sum to at least this; in (0, 1]."""
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    """Keep the tokens at least this times as probable as the most probable one; in [0, 1]."""
    seed: Seed = 0
    """In ``range(2**64)``: the same seed gives the same tokens, alone or in a batch."""
    presence_penalty: Finite = 0.0
    """Subtracted from the logit of every token the output holds."""
    frequency_penalty: Finite = 0.0
    """Subtracted from a token's logit once for each time the output holds it."""
    repetition_penalty: Positive = 1.0
    """Above 0: divides the positive logits of tokens that prompt or output hold, and multiplies the negative ones."""
    logit_bias: tuple[tuple[Count, Bias], ...] = ()
    """Token ids, each once, and what is added to their logits; minus infinity forbids a token."""
    min_tokens: Count = 0
    """None of ``stop_ids`` is drawn before the output holds this many tokens."""
    stop_ids: tuple[Count, ...] = ()
    """The token ids ``min_tokens`` speaks of."""
