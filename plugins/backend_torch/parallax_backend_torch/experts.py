"""Mixtures of experts: a router chooses a few of many small MLPs for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.weights import Weights

Route = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A function of the router's scores, float32 of shape [tokens, experts], that returns the chosen experts of each token,
int64, and their shares, float32, both of shape [tokens, chosen]."""


@dataclass(frozen=True, slots=True)
class Expert:
    """An expert: gate, up and down."""

    into: Packed
    """The rows of gate, then those of up."""
    back: Packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: [tokens, width]."""
        return self.back.apply(self.into.apply_gated(x))


class Experts:
    """A router and its experts; a step runs only the experts chosen for some token.

    Args:
        router: computes the scores.
        experts: the experts in the order of the scores.
        route: chooses experts by the scores.
        shared: the shared expert, which runs for every token, if the model has one.
        latent: the matrices to the width of the routed experts and back, if it is not that of the model.
    """

    def __init__(
        self,
        router: Packed,
        experts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        route: Route,
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
        latent: tuple[Packed, Packed] | None = None,
    ) -> None:
        self._router, self._experts, self._route, self._shared = router, experts, route, shared
        self._latent = latent

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of the experts' outputs plus ``residual``: [tokens, width]."""
        return self.run(x, residual, *self._route(self.score(x)))

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """Return the router's scores, float32 of shape [tokens, experts]."""
        return self._router.apply(x).float()

    def run(
        self, x: torch.Tensor, residual: torch.Tensor | None, chosen: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum of the outputs of chosen experts plus ``residual``; see `Route`."""
        order = chosen.flatten().argsort(stable=True)
        tokens = order // chosen.shape[1]
        inputs = x if self._latent is None else self._latent[0].apply(x)
        sorted_x, sorted_shares = inputs[tokens], shares.flatten()[order, None].to(x.dtype)
        counts = torch.bincount(chosen.flatten(), minlength=len(self._experts)).tolist()
        parts, start = [], 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                parts.append(expert(sorted_x[start : start + count]))
                start += count
        shared = torch.zeros_like(x) if self._shared is None else self._shared(x)
        out = shared if self._latent is None else torch.zeros_like(inputs)
        out.index_add_(0, tokens, torch.cat(parts).mul_(sorted_shares))
        if self._latent is not None:
            out = self._latent[1].apply(out, shared)
        return out if residual is None else out.add_(residual)


STACKS = "experts.gate_up_proj", "experts.down_proj"


def build_experts(weights: Weights, num: int, stacks: tuple[str, str] = STACKS) -> list[Expert]:
    """Return the experts of a layer.

    Args:
        weights: with tensors for each, ``experts.0.gate_proj.weight`` and so on, or two for all.
        num: the number of experts.
        stacks: the names of those for all, of shape [experts, 2 * inner, width] and [experts, width, inner].
    """
    if weights.has(stacks[0]):
        both = (weights.read_plain(name) for name in stacks)
        return [Expert(*(weights.keep_linear(each, None) for each in pair)) for pair in zip(*both, strict=True)]
    parts = [weights.within(f"experts.{number}") for number in range(num)]
    return [Expert(part.make_linear("gate_proj", "up_proj"), part.make_linear("down_proj")) for part in parts]


@dataclass(frozen=True, slots=True)
class SoftmaxRoute:
    """Chooses the most probable experts, by a softmax over all."""

    num_chosen: int
    is_normalised: bool
    """Whether the shares of the chosen experts are scaled to sum to 1."""

    def __call__(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose."""
        shares, chosen = scores.softmax(-1).topk(self.num_chosen, dim=-1)
        return chosen, shares / shares.sum(-1, keepdim=True) if self.is_normalised else shares


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class GroupRoute:
    """Takes the best groups of experts, and of these the best experts (arXiv 2412.19437, section 2.1.2)."""

    num_chosen: int
    num_groups: int = 1
    num_chosen_groups: int = 1
    correction: torch.Tensor | None = None
    """Added to the scores to choose experts, but not to their shares: float32 of shape [experts]."""
    is_normalised: bool = True
    scale: float = 1.0
    """The factor of the experts' shares."""
    score: Callable[[torch.Tensor], torch.Tensor] = torch.sigmoid
    """Makes scores of the router's outputs."""
    num_best: int = 2
    """The number of experts in a group whose scores, added, are the score of the group."""
    eps: float = 1e-20
    """Added to the sum by which shares are divided."""

    def __call__(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose."""
        shares = self.score(scores)
        ranked = shares if self.correction is None else shares + self.correction
        if self.num_groups > 1:
            groups = ranked.unflatten(1, (self.num_groups, -1))
            ranks = groups.topk(min(self.num_best, groups.shape[-1]), dim=-1).values.sum(-1)
            kept = torch.zeros_like(ranks, dtype=torch.bool)
            kept.scatter_(1, ranks.topk(self.num_chosen_groups, dim=-1).indices, value=True)
            ranked = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)
        chosen = ranked.topk(self.num_chosen, dim=-1).indices
        return chosen, self.share(shares, chosen)

    def share(self, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Return the shares of chosen experts, [tokens, chosen], from those of all."""
        found = shares.gather(1, chosen)
        if self.is_normalised:
            found = found / (found.sum(-1, keepdim=True) + self.eps)
        return found * self.scale
