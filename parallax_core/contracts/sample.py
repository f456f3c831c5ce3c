"""The sampling parameters of a sequence."""

from __future__ import annotations

from typing import Annotated

import msgspec

from parallax_core.contracts.value import Bias, Count, Finite, Positive, Seed, Value, Weight


class Sampling(Value, frozen=True, kw_only=True):
    """The sampling parameters of one sequence. `parallax_core.sampling` defines their arithmetic and order.

    The server checks values from clients, and the wire codec checks the ranges given here; stages rely on them. Sent
    once, when a sequence is opened.
    """

    temperature: Weight = 1.0
    """At least 0; 0 takes the most probable token."""
    top_k: Count = 0
    """Keep the k most probable tokens and those tied with the last of them; 0 keeps all."""
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Keep the most probable tokens whose probabilities sum to at least this; in (0, 1]."""
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    """Keep the tokens at least this times as probable as the most probable one; in [0, 1]."""
    seed: Seed = 0
    """In ``range(2**64)``: the same seed gives the same tokens, alone or in a batch."""
    presence_penalty: Finite = 0.0
    """Subtracted from the logit of every token in the output."""
    frequency_penalty: Finite = 0.0
    """Subtracted from a token's logit once for each occurrence in the output."""
    repetition_penalty: Positive = 1.0
    """Above 0: divides the positive logits of tokens in the prompt or output, and multiplies the negative ones."""
    logit_bias: tuple[tuple[Count, Bias], ...] = ()
    """Token ids, each once, and the value added to their logits; minus infinity forbids a token."""
    min_tokens: Count = 0
    """No token of ``stop_ids`` is drawn before the output has this many tokens."""
    stop_ids: tuple[Count, ...] = ()
    """The token ids that ``min_tokens`` delays."""
