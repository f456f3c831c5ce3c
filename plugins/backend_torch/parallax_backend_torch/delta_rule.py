"""The gated delta rule (arXiv 2412.06464): attention with a state instead of keys and values.

For each token the state decays, then is corrected by the share beta so that it maps the token's key to its value; the
output is the state's value for the query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

CHUNK = 32
"""The number of tokens of a sequence that are computed at once."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The inputs of the rule for some tokens, in float32; further axes may precede the named ones."""

    query: torch.Tensor
    """[tokens, heads, key width], scaled."""
    key: torch.Tensor
    """[tokens, heads, key width], of length 1."""
    value: torch.Tensor
    """[tokens, heads, value width]."""
    decay: torch.Tensor
    """[tokens, heads], or [tokens, heads, key width]: the logarithm of the decay of a state, or of each of its rows."""
    beta: torch.Tensor | None
    """[tokens, heads]: the share of the difference that is corrected; None: keys add their values, as in Mamba 2."""

    def pick(self, which: slice | torch.Tensor) -> Tokens:
        """Return some of the tokens."""
        beta = None if self.beta is None else self.beta[which]
        return Tokens(self.query[which], self.key[which], self.value[which], self.decay[which], beta)


def run_single(tokens: Tokens, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule to one token each of many sequences.

    Args:
        tokens: one of each sequence.
        states: the state of each sequence, [sequences, heads, key width, value width].

    Returns:
        The outputs, [sequences, heads, value width], and the new states.
    """
    decay = tokens.decay if tokens.decay.ndim == tokens.key.ndim else tokens.decay[..., None]
    states = states * decay.exp()[..., None]
    change = tokens.value
    if tokens.beta is not None:
        change = (change - (tokens.key[..., None, :] @ states)[..., 0, :]) * tokens.beta[..., None]
    states = states + tokens.key[..., :, None] * change[..., None, :]
    return (tokens.query[..., None, :] @ states)[..., 0, :], states


def run_sequence(tokens: Tokens, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule to consecutive tokens of one sequence, one chunk at a time.

    Args:
        tokens: in order.
        state: [heads, key width, value width].

    Returns:
        The outputs, [tokens, heads, value width], and the new state.
    """
    outputs = []
    for start in range(0, len(tokens.decay), CHUNK):
        found, state = _run_chunk(tokens.pick(slice(start, start + CHUNK)), state)
        outputs.append(found)
    return torch.cat(outputs), state


def _run_chunk(tokens: Tokens, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the rule to a chunk: the corrections of its tokens solve a triangular system (section 3.3)."""
    query, key, value = (part.transpose(0, 1) for part in (tokens.query, tokens.key, tokens.value))
    total = tokens.decay.transpose(0, 1).cumsum(1)
    total = total[..., None] if total.ndim < key.ndim else total
    later = torch.ones(len(tokens.decay), len(tokens.decay), dtype=torch.bool, device=key.device).triu(1)
    between = (total[:, :, None] - total[:, None]).masked_fill(later[..., None], -torch.inf).exp()
    change = value
    if tokens.beta is not None:
        beta = tokens.beta.T[..., None]
        wanted = beta * (value - (key * total.exp()) @ state)
        system = _compare(beta * key, key, between)
        change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    found = (query * total.exp()) @ state + _compare(query, key, between) @ change
    left = (total[:, -1:] - total).exp()
    state = state * total[:, -1].exp()[..., None] + (key * left).transpose(-1, -2) @ change
    return found.transpose(0, 1), state


def _compare(query: torch.Tensor, key: torch.Tensor, between: torch.Tensor) -> torch.Tensor:
    """Return the products of queries and keys, [heads, tokens, tokens], after the decay of each channel, or of all."""
    if between.shape[-1] == 1:
        return query @ key.transpose(-1, -2) * between[..., 0]
    return torch.einsum("hik,hijk,hjk->hij", query, between, key)
