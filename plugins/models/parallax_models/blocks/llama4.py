"""Llama 4, text: attention to the chunk of a token, and experts whose inputs are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.api import (
    Attention,
    Choice,
    Config,
    Decoder,
    Expert,
    GatedMlp,
    Heads,
    LayerCache,
    Look,
    Mixer,
    Norm,
    Packed,
    SeenRow,
    SlotMapping,
    Step,
    Weights,
    find_longest,
    list_rows,
)
from parallax_models import llama4


@dataclass(frozen=True, slots=True)
class Temperature:
    """The factor of queries without positions, which grows by the logarithm of the position."""

    scale: float
    floor: float

    def __call__(self, positions: torch.Tensor) -> torch.Tensor:
        """Return the factor at each position."""
        return 1 + self.scale * torch.log1p(torch.floor((positions + 1) / self.floor))


class ChunkAttention(Attention):
    """Attention to the tokens of a token's own chunk; see `Attention`.

    Args:
        weights: as in `Attention`.
        heads: the numbers of heads.
        look: the other options.
        chunk: the number of tokens in a chunk; 0: all.
    """

    is_steady = False

    def __init__(self, weights: Weights, heads: Heads, look: Look, chunk: int) -> None:
        super().__init__(weights, heads, look)
        self.is_plain, self._chunk = False, chunk
        if look.norms_last:
            self.norms = [Norm(weights.factory.make_vector(torch.ones(heads.width)), look.eps)] * 2

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        places, choices = cache.places, None
        assert isinstance(places, SlotMapping)
        if 0 < self._chunk < find_longest(places):
            choices = [self._choose(row) for row in list_rows(places, x.device)]
        return self.back.apply(self.look(self.into.apply(x), step, cache, choices), residual)

    def _choose(self, row: SeenRow) -> Choice:
        within = torch.arange(min(self._chunk, len(row.slots)), device=row.slots.device)
        positions = row.positions[:, None]
        chosen = positions // self._chunk * self._chunk + within
        return Choice(
            row.part, row.slots[chosen.clamp(max=len(row.slots) - 1)][:, None], (chosen <= positions)[:, None]
        )


@dataclass(frozen=True, eq=False, slots=True)
class ScaledExperts:
    """Experts whose inputs, not outputs, are scaled by their shares, and one that every token meets."""

    router: Packed
    experts: Sequence[Expert]
    num_chosen: int
    shared: GatedMlp

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of the experts' outputs plus ``residual``: [tokens, width]."""
        best, chosen = self.router.apply(x).float().topk(self.num_chosen, dim=-1)
        out, shares = self.shared(x, residual), best.sigmoid().to(x.dtype)
        for number in chosen.unique().tolist():
            tokens, places = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, tokens, self.experts[number](x[tokens] * shares[tokens, places, None]))
        return out


class Llama4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        config = config.fill(rope_theta=500_000.0)
        super().__init__(config)
        self.kinds, self.rotated = llama4.list_kinds(config), llama4.list_rotated(config)
        self.sparse = llama4.list_sparse(config)

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer: with positions, and then norms, or with a temperature."""
        if self.rotated[index]:
            return replace(self.look, is_paired=True, norms_last=self.config.flag("use_qk_norm", default=True))
        is_warm = bool(self.config.raw.get("attn_temperature_tuning", True))  # older files have a number
        warm = Temperature(self.config.number("attn_scale", 0.1), self.config.number("floor_scale", 8192))
        return replace(self.look, rope=None, warm=warm if is_warm else None)

    def build_attention(self, index: int, weights: Weights) -> ChunkAttention:
        """Build attention, to the chunk of a token or to all tokens."""
        chunk = self.config.count("attention_chunk_size", default=8192) if self.kinds[index] == llama4.CHUNKED else 0
        return ChunkAttention(weights.within("self_attn"), self.heads, self.find_look(index), chunk)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and one that every token meets, or an MLP."""
        weights = weights.within("feed_forward")
        if index not in self.sparse:
            return GatedMlp(weights)
        stacks = (weights.read_plain(f"experts.{name}") for name in ("gate_up_proj", "down_proj"))
        return ScaledExperts(
            router=weights.make_linear("router", purpose="router"),
            experts=[
                Expert(*(weights.keep_linear(each.T.contiguous(), None) for each in pair))
                for pair in zip(*stacks, strict=True)
            ],
            num_chosen=self.config.count("num_experts_per_tok"),
            shared=GatedMlp(weights.within("shared_expert")),
        )
