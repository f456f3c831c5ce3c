"""Mixtures of experts: a router chooses a few of many small MLPs for each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from parallax_backend_torch.adapters import ExpertRows, choosing
from parallax_backend_torch.config import Config
from parallax_backend_torch.kernels.linear import Gate, Packed
from parallax_backend_torch.mlp import Clamp, ClampedMlp, GatedMlp
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
    gate: Gate = "silu"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: [tokens, width]."""
        return self.back.apply(self.into.apply_gated(x, self.gate))


@dataclass(frozen=True, eq=False, slots=True)
class SharedExpert:
    """The shared expert, which runs for every token, weighted by its gate."""

    mlp: GatedMlp
    gate: Packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output: [tokens, width]."""
        return self.mlp(x) * self.gate.apply(x).sigmoid()


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
                part = slice(start, start + count)
                with choosing(ExpertRows(tokens, part)):
                    parts.append(self.run_expert(expert, sorted_x[part], sorted_shares[part]))
                start += count
        shared = torch.zeros_like(x) if self._shared is None else self._shared(x)
        out = shared if self._latent is None else torch.zeros_like(inputs)
        out.index_add_(0, tokens, torch.cat(parts))
        if self._latent is not None:
            out = self._latent[1].apply(out, shared)
        return out if residual is None else out.add_(residual)

    def run_expert(
        self, expert: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return what an expert adds for some tokens, [tokens, width]; ``shares`` are of shape [tokens, 1]."""
        return expert(x).mul_(shares)


STACKS = "experts.gate_up_proj", "experts.down_proj"
NUMBERED = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""The names of the matrices of an expert, and those in files of Mixtral and many others; see `Weights.rename`."""


def find_mixtral(weights: Weights) -> Weights:
    """Return the weights of Mixtral's experts by the names of others: w1, w3 and w2, unless mlx-lm has stacked them."""
    weights = weights.within("block_sparse_moe")
    return weights if weights.has("switch_mlp.gate_proj.weight") else weights.rename(**NUMBERED)


def build_experts(
    weights: Weights, num: int, stacks: tuple[str, str] = STACKS, clamp: Clamp | None = None
) -> list[Expert | ClampedMlp]:
    """Return the experts of a layer.

    Args:
        weights: with tensors for each, ``experts.0.gate_proj.weight`` and so on, or two for all, or three, as mlx-lm
            has them: ``switch_mlp.gate_proj.weight`` and so on.
        num: the number of experts.
        stacks: the names of those for all, of shape [experts, 2 * inner, width] and [experts, width, inner].
        clamp: limits gate and up; None: no limits.
    """
    if weights.has(stacks[0]):
        both = zip(*(weights.read_plain(name) for name in stacks), strict=True)
        pairs = [(weights.keep_linear(into, None), weights.keep_linear(back, None)) for into, back in both]
        pairs = name_experts(weights, pairs) if stacks == STACKS else pairs
    elif weights.has("switch_mlp.gate_proj.weight"):
        part = weights.within("switch_mlp")
        pairs = [
            (part.make_stacked((number, num), "gate_proj", "up_proj"), part.make_stacked((number, num), "down_proj"))
            for number in range(num)
        ]
        pairs = name_experts(weights, pairs)
    else:
        parts = (weights.within(f"experts.{number}") for number in range(num))
        pairs = [(part.make_linear("gate_proj", "up_proj"), part.make_linear("down_proj")) for part in parts]
    return [ClampedMlp(into, back, clamp) if clamp else Expert(into, back) for into, back in pairs]


def name_experts(
    weights: Weights, pairs: Sequence[tuple[Packed, Packed]], halves: tuple[str, str] = ("gate_proj", "up_proj")
) -> list[tuple[Packed, Packed]]:
    """Return the matrices of experts that were read from stacks as such that take adapters.

    Args:
        weights: those of the MLP.
        pairs: of each expert, the rows of gate and then those of up, and down.
        halves: the names of gate and up; other ones say that the stack has their rows by turns, see `joined.TURNS`.
    """

    def adapt(matrix: Packed, number: int, *names: str) -> Packed:
        return weights.adapt(matrix, *(f"experts.{number}.{name}" for name in names))

    return [
        (adapt(into, number, *halves), adapt(back, number, "down_proj")) for number, (into, back) in enumerate(pairs)
    ]


def build_shared(weights: Weights, num: int, route: Route) -> Experts:
    """Return experts beside a shared one with a gate, ``shared_expert``, from the weights of a layer's MLP."""
    gate = weights.make_linear("shared_expert_gate", purpose="router")
    shared = SharedExpert(GatedMlp(weights.within("shared_expert")), gate)
    return Experts(weights.make_linear("gate", purpose="router"), build_experts(weights, num), route, shared)


def build_groups(
    config: Config, weights: Weights, route: Route, experts: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()
) -> Experts:
    """Return experts as DeepSeek has them, beside ``shared_experts``, from the weights of a layer's MLP.

    Args:
        config: the settings of the model, with the number of experts.
        weights: those of the MLP.
        route: chooses the experts.
        experts: the routed experts; empty: gate, up and down.
    """
    made = experts or build_experts(weights, config.count("n_routed_experts", "num_local_experts"))
    router = weights.make_linear("gate", purpose="router")
    return Experts(router, made, route, GatedMlp(weights.within("shared_experts")))


@dataclass(frozen=True, eq=False, slots=True)
class SoftmaxRoute:
    """Chooses the most probable experts, by a softmax over all."""

    num_chosen: int
    is_normalised: bool
    """Whether the shares of the chosen experts are scaled to sum to 1."""
    scales: torch.Tensor | None = None
    """Factors of the shares of each expert, float32 of shape [experts]; None: 1."""

    def __call__(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose."""
        shares, chosen = scores.softmax(-1).topk(self.num_chosen, dim=-1)
        shares = shares / shares.sum(-1, keepdim=True) if self.is_normalised else shares
        return chosen, shares if self.scales is None else shares * self.scales[chosen]


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

    @classmethod
    def read(cls, config: Config, weights: Weights) -> GroupRoute:
        """Read it as DeepSeek-V3 has it, with the correction ``gate.e_score_correction_bias`` of a layer's MLP."""
        return cls(
            correction=weights.read_vector("gate.e_score_correction_bias"),
            num_chosen=config.count("num_experts_per_tok"),
            num_groups=config.count("n_group", default=1),
            num_chosen_groups=config.count("topk_group", default=1),
            is_normalised=config.flag("norm_topk_prob", default=True),
            scale=config.number("routed_scaling_factor", 1.0),
        )

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
