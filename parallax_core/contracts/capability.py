"""The optional capabilities of a stage. Every stage supports edits, steps and `Draw`."""

from __future__ import annotations

from typing import Literal

Capability = Literal[
    "logprobs",  # Draw.top and Score
    "hidden",  # Hidden
    "hidden_sums",  # Hidden.summed
    "positions",  # Row.positions
    "embeddings",  # Row.spans
    "adapters",  # SequenceSpec.adapter
    "masks",  # Draw.masked
    "masking",  # the optional protocol Masking: per-sequence visibility
    "portable",  # the optional protocol Portable: read and write the KV of a token range
    "leases",  # the optional protocol Leasing: parts of the layers, each with a share of the memory
    "reloadable",  # the optional protocol Reloadable: new weights in place
    "chained",  # reserved: a row's token is the one drawn by the step before
]
