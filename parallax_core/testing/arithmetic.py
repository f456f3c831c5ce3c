"""The arithmetic of the toy model in integers: hidden states of its layers, and logits.

A hidden state is one integer below `PRIME`. A layer notes each token, gathers the notes it can see in their order, and
mixes what it gathered into the hidden state. Order, position and layer all count, so that a note which is lost, stale,
shifted or of another sequence changes everything after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from parallax_core.contracts.stage import PoolKind

PRIME = 2**31 - 1
LATENT = 65521
"""A latent layer stores only the remainder by this prime."""
LEVELS = 2**17 - 1
"""The number of different logits: a prime, small enough that each is exact in float32."""
SCALE = 2**14
"""The divisor of logits, so that they lie in 0 to 8."""
CONSTANTS: dict[PoolKind, int] = {"full": 17, "window": 29, "latent": 43, "state": 61}
"""A constant for each kind of layer, so that kinds differ."""


def mix(first: int, second: int) -> int:
    """Return an integer below `PRIME` that depends on both, and on their order."""
    return (first * 48271 + second * 69621 + 1) % PRIME


def embed_token(token: int, position: int) -> int:
    """Return the hidden state of a token before the first layer."""
    return mix(token + 1, position + 3)


def note_token(kind: PoolKind, layer: int, hidden: int, position: int) -> int:
    """Return the note that a layer stores for a token."""
    note = mix(mix(hidden, position + 5), layer + CONSTANTS[kind])
    return note % LATENT if kind == "latent" else note


def gather_notes(notes: Iterable[int], gathered: int = 0) -> int:
    """Return the result of gathering notes in order, continuing from ``gathered``."""
    for note in notes:
        gathered = mix(gathered, note)
    return gathered


def finish_token(hidden: int, gathered: int) -> int:
    """Return the hidden state of a token after a layer."""
    return mix(gathered, hidden + 7)


def score_tokens(hidden: int, vocab: int) -> list[float]:
    """Return the logits of the token that follows, each different from all others and exact in float32."""
    step, first = 1 + hidden % (LEVELS - 1), mix(hidden, 11)
    return [((token + 1) * step + first) % LEVELS / SCALE for token in range(vocab)]
