"""Fields honoured by stages of this backend; imports no PyTorch, so that docs can be made from it."""

from __future__ import annotations

from parallax_core.api import Capability

STAGE_CAPABILITIES: frozenset[Capability] = frozenset({"logprobs", "hidden", "hidden_sums", "positions", "masks"})
"""The capabilities of a stage."""
ADAPTERS: frozenset[Capability] = frozenset({"adapters"})
"""What it has as well, unless it runs on the code of transformers."""
