"""Fields honoured by stages of this backend; imports no SGLang, so that docs can be made from it."""

from __future__ import annotations

from parallax_core.api import Capability

STAGE_CAPABILITIES: frozenset[Capability] = frozenset({"logprobs", "hidden", "hidden_sums", "masks"})
"""The capabilities of a stage: its logits are drawn from by parallax-sampling-torch."""
