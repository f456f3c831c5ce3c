"""How the next token of a sequence is chosen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The sampling of one sequence. `parallax_core.sampling` defines the arithmetic and the order of filters.

    Whoever takes values from outside checks them; stages rely on the ranges given here.
    """

    temperature: float = 1.0
    """At least 0; 0 takes the most probable token."""
    top_k: int = 0
    """Keep the k most probable tokens and all that tie with the last of them; 0 keeps all."""
    top_p: float = 1.0
    """Keep the most probable tokens whose probabilities sum to at least this; in (0, 1]."""
    seed: int = 0
    """In ``range(2**64)``: the same seed gives the same tokens, alone or in a batch."""
