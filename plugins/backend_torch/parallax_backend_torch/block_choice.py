"""Chooses blocks of consecutive tokens to attend to, by one score for each block."""

from __future__ import annotations

import torch


def choose_blocks(scores: torch.Tensor, positions: torch.Tensor, size: int, num: int) -> torch.Tensor:
    """Return the positions of the tokens of the best whole blocks, and of those after the last block.

    Args:
        scores: of the whole blocks of a sequence, [tokens, blocks].
        positions: of the tokens, int64 of shape [tokens].
        size: the number of tokens in a block.
        num: the most blocks that a token attends to.

    Returns:
        int64 of shape [tokens, num * size + size - 1], -1 for none.
    """
    ends, within = positions[:, None] + 1, torch.arange(size, device=scores.device)
    blocks = torch.arange(scores.shape[1], device=scores.device)
    best = scores.masked_fill((blocks + 1) * size > ends, -torch.inf).topk(min(num, len(blocks)), dim=-1)
    chosen = (best.indices[..., None] * size + within).masked_fill((best.values == -torch.inf)[..., None], -1)
    rest = ends // size * size + within[:-1]
    found = torch.full((len(scores), num * size + size - 1), -1, device=scores.device)
    found[:, : chosen[0].numel()] = chosen.flatten(1)
    found[:, num * size :] = rest.masked_fill(rest >= ends, -1)
    return found
