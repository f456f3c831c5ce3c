"""What stages of this backend honour; imports no MLX, so that the documentation can be made from it."""

from __future__ import annotations

from parallax_core.api import Capability

STAGE_CAPABILITIES: frozenset[Capability] = frozenset({"adapters", "logprobs", "hidden", "hidden_sums", "masks"})
"""The capabilities of a stage; ``hidden`` and ``hidden_sums`` are missing where no part of the model makes logits, and
``adapters`` where no module takes them."""
