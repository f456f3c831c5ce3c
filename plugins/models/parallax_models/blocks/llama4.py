"""Llama 4, text: attention to the chunk of a token, and experts whose inputs are scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from parallax_backend_torch.api import (
    Choice,
    ChosenAttention,
    Config,
    Expert,
    Experts,
    GatedMlp,
    LayerCache,
    Look,
    Mixer,
    Norm,
    SeenRow,
    SlotMapping,
    Step,
    Warmth,
    Weights,
    find_longest,
    list_rows,
)
from parallax_models import llama4
from parallax_models.blocks.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chooses the tokens of a token's own chunk; see `ChosenAttention`."""

    size: int
    """The number of tokens in a chunk; 0: all."""

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> list[Choice] | None:  # noqa: ARG002 -- of an index
        """Return the tokens that those of a step attend to."""
        assert isinstance(cache.places, SlotMapping)
        if not 0 < self.size < find_longest(cache.places):
            return None
        return [self._choose(row) for row in list_rows(cache.places, x.device)]

    def _choose(self, row: SeenRow) -> Choice:
        within = torch.arange(min(self.size, len(row.slots)), device=row.slots.device)
        positions = row.positions[:, None]
        chosen = positions // self.size * self.size + within
        slots = row.slots[chosen.clamp(max=len(row.slots) - 1)]
        return Choice(row.part, slots[:, None], (chosen <= positions)[:, None])


class ScaledExperts(Experts):
    """Experts whose inputs, not outputs, are scaled by their shares."""

    def run_expert(
        self, expert: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Return what an expert adds for some tokens."""
        return expert(x * shares)


class Llama4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.kinds, self.rotated = llama4.list_kinds(self.config), llama4.list_rotated(self.config)
        self.sparse = llama4.list_sparse(self.config)

    def find_look(self, index: int) -> Look:
        """Return the options of attention in a layer: with positions, and then norms, or with a temperature."""
        if self.rotated[index]:
            return replace(self.look, is_paired=True, norms_last=self.config.flag("use_qk_norm", default=True))
        is_warm = bool(self.config.raw.get("attn_temperature_tuning", True))  # older files have a number
        warm = Warmth(self.config.number("attn_scale", 0.1), self.config.number("floor_scale", 8192), first=1)
        return replace(self.look, rope=None, warm=warm if is_warm else None)

    def build_attention(self, index: int, weights: Weights) -> ChosenAttention:
        """Build attention, to the chunk of a token or to all tokens."""
        chunk = self.config.count("attention_chunk_size", default=8192) if self.kinds[index] == llama4.CHUNKED else 0
        weights, look = weights.within("self_attn"), self.find_look(index)
        made = ChosenAttention(weights, self.heads, look, Chunks(chunk))
        if look.norms_last:
            made.norms = [Norm.plain(weights, self.heads.width, look.eps)] * 2
        return made

    def build_mixer(self, index: int, weights: Weights) -> Mixer:
        """Build experts and one that every token meets, or an MLP."""
        weights = weights.within("feed_forward")
        if index not in self.sparse:
            return GatedMlp(weights)
        stacks = (weights.read_plain(f"experts.{name}") for name in ("gate_up_proj", "down_proj"))
        return ScaledExperts(
            router=weights.make_linear("router", purpose="router"),
            experts=[
                Expert(weights.keep_linear(into.T.contiguous(), None), weights.keep_linear(back.T.contiguous(), None))
                for into, back in zip(*stacks, strict=True)
            ],
            route=self._route,
            shared=GatedMlp(weights.within("shared_expert")),
        )

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose the best experts; the share of each is a sigmoid."""
        best, chosen = scores.topk(self.config.count("num_experts_per_tok"), dim=-1)
        return chosen, best.sigmoid()
