"""Qwen4-Exp: residual streams with gates, rows of hashed n-grams, attention to chosen blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    FULL,
    Attention,
    CacheSpec,
    Choice,
    ChosenAttention,
    Config,
    DeltaNet,
    HyperLayer,
    Layer,
    LayerCache,
    Mixer,
    NgramHashes,
    NgramPart,
    Norm,
    Rope,
    SeenRow,
    SlotMapping,
    Step,
    StreamGate,
    StreamPart,
    Weights,
    build_parts,
    choose_blocks,
    find_longest,
    list_rows,
    rotate,
    score_keys,
)
from parallax_models import qwen4_exp
from parallax_models.blocks.qwen3_next import Qwen3Next, build_routed

MIXER = "hyper_connection_mixer"
TABLE = "ngram_embedding"
GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"sigmoid": torch.sigmoid, "silu": functional.silu}


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of an index of blocks."""

    num_heads: int
    width: int
    block: int
    """The number of tokens in a block."""
    num_chosen: int
    """The number of whole blocks that a token attends to."""


class BlockIndex:
    """The index of one layer: a block has one key, the mean of its tokens'; its last tokens are seen by all.

    Args:
        weights: with ``index_qk_proj``, ``q_layernorm`` and ``k_layernorm``.
        sizes: its sizes.
        rope: the rope of its queries and keys.
        eps: the eps of its norms.
    """

    def __init__(self, weights: Weights, sizes: BlockSizes, rope: Rope, eps: float) -> None:
        self.sizes, self._rope = sizes, rope
        self._into = weights.make_linear("index_qk_proj")
        self._query_norm, self._key_norm = (Norm.read(weights, f"{name}_layernorm", eps, 1.0) for name in ("q", "k"))

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> list[Choice] | None:
        """Keep the keys of the new tokens, and return the tokens of the best blocks for each; None: all are chosen."""
        sizes, places, kept = self.sizes, cache.places, cache.kept[-1]
        assert isinstance(places, SlotMapping)
        mixed = self._into.apply(x).unflatten(1, (-1, sizes.width))
        kept[places.slots] = mixed[:, sizes.num_heads :].to(kept.dtype)
        if find_longest(places) // sizes.block <= sizes.num_chosen:
            return None
        query = self._query_norm(mixed[:, : sizes.num_heads].contiguous())
        rotate(query, step.find_angles(self._rope))
        return [self._choose_row(query[row.part].float(), row, kept) for row in list_rows(places, x.device)]

    def _choose_row(self, query: torch.Tensor, row: SeenRow, kept: torch.Tensor) -> Choice:
        sizes, count = self.sizes, len(row.slots) // self.sizes.block
        raw = kept[row.slots[: count * sizes.block], 0].float().unflatten(0, (count, sizes.block))
        keys = self._key_norm(raw.mean(1).to(kept.dtype)[:, None])
        rotate(keys, self._rope.find_angles(torch.arange(count, device=query.device) * sizes.block))
        parts = score_keys(query, None, keys[:, 0])
        found = [choose_blocks(each, row.positions[part], sizes.block, sizes.num_chosen) for part, each in parts]
        chosen = torch.cat(found)[:, None]
        return Choice(row.part, row.slots[chosen.clamp(min=0)], chosen >= 0)


class Qwen4Exp(Qwen3Next):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, norm="", after=(MIXER,), mapped=(TABLE,))
        self.num_streams = qwen4_exp.read_streams(self.config)[1]
        self.tables = qwen4_exp.list_tables(self.config)
        self.gate = GATES[self.config.choose(tuple(GATES), "output_gate_type", default="silu")]
        block = self.config.count("indexer_compress_ratio")
        self.index = BlockSizes(
            num_heads=self.config.count("indexer_n_heads"),
            width=self.config.count("indexer_head_dim"),
            block=block,
            num_chosen=self.config.count("indexer_budget") // block,
        )

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a state, and of n-grams the last inputs and ids; or keys, also of the index."""
        kept = super().keep_layer(index)
        if self.kinds[index] == FULL:
            return replace(kept, shapes=(*kept.shapes, (1, self.index.width)))
        if index not in self.tables:
            return kept
        length = self.config.count("ngram_size", default=3)
        seen = (self.config.count("ple_conv_kernel_size", default=4) - 1) * length
        return replace(kept, shapes=(*kept.shapes, (seen, self.num_streams * self.shape.hidden_size), (length - 1,)))

    def build_attention(self, index: int, weights: Weights) -> Attention | DeltaNet:
        """Build attention to chosen blocks, or a delta net."""
        if self.kinds[index] == FULL and self.look.rope is not None:
            weights = weights.within("self_attn")
            chosen = BlockIndex(weights.within("indexer"), self.index, self.look.rope, self.shape.eps)
            return ChosenAttention(weights, self.heads, self.look, chosen)
        return DeltaNet(weights.within("linear_attn"), self.sizes, self.shape.eps, self.gate)

    def build_mixer(self, index: int, weights: Weights) -> Mixer:  # noqa: ARG002 -- every layer is alike
        """Build experts and a shared one."""
        return build_routed(self.config, weights.within("mlp"), is_normalised=True)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        gates = [self._build_gate(weights, f"{name}_hyper_connection") for name in ("attn", "mlp")]
        attention, mixer = self.build_attention(index, weights), self.build_mixer(index, weights)
        parts: list[StreamPart] = [*build_parts(gates, (None, None), attention, mixer)]
        if index in self.tables:
            parts.insert(0, self._build_ngrams(index, weights.within("ple")))
        is_last = index + 1 == self.shape.num_layers
        end = self._build_gate(weights.top(), MIXER).mix if is_last else None
        return HyperLayer(parts, 0 if index else self.num_streams, end)

    def _build_gate(self, weights: Weights, name: str) -> StreamGate:
        return StreamGate(weights.within(name), self.num_streams, self.shape.eps)

    def _build_ngrams(self, index: int, weights: Weights) -> NgramPart:
        config, stored = self.config, weights.within("ple_embedding")
        stored.leave("ngram_heads_offsets", "ngram_heads_vocab_sizes", "layer_multipliers")
        multipliers = qwen4_exp.find_multipliers(config, sorted(self.tables).index(index))
        ends = config.raw.get("eos_token_id")
        end = ends[0] if isinstance(ends, list) and ends else ends
        if type(end) is not int:
            raise qwen4_exp.refuse(config, "eos_token_id", "n-grams begin after a token of this number")
        device = weights.factory.device
        factors, sizes = (torch.tensor(each, device=device) for each in (multipliers, self.tables[index]))
        return NgramPart(weights, NgramHashes(factors, sizes, end), (TABLE, self.num_streams, self.shape.eps))
