"""Mixtures of experts: a router chooses a few of many small MLPs for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.config import Config
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
    """

    def __init__(
        self,
        router: Packed,
        experts: Sequence[Callable[[torch.Tensor], torch.Tensor]],
        route: Route,
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._router, self._experts, self._route, self._shared = router, experts, route, shared

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of the experts' outputs plus ``residual``: [tokens, width]."""
        chosen, shares = self._route(self._router.apply(x).float())
        order = chosen.flatten().argsort(stable=True)
        tokens = order // chosen.shape[1]
        sorted_x, sorted_shares = x[tokens], shares.flatten()[order, None].to(x.dtype)
        counts = torch.bincount(chosen.flatten(), minlength=len(self._experts)).tolist()
        parts, start = [], 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                parts.append(expert(sorted_x[start : start + count]))
                start += count
        out = torch.zeros_like(x) if self._shared is None else self._shared(x)
        out.index_add_(0, tokens, torch.cat(parts).mul_(sorted_shares))
        return out if residual is None else out.add_(residual)


def build_experts(weights: Weights, num: int) -> list[Expert]:
    """Return the experts of a checkpoint with separate tensors for each: ``experts.0.gate_proj`` and so on."""
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


def has_experts(config: Config, index: int) -> bool:
    """Whether a layer has experts, by the rules of Qwen's models."""
    step = config.count("decoder_sparse_step", default=1)
    return index not in config.list_numbers("mlp_only_layers") and (index + 1) % step == 0


def count_experts(config: Config) -> int:
    """Return the number of experts in a layer."""
    return config.count("num_experts", "num_local_experts")
