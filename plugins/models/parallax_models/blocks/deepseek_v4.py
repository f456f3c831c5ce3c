"""DeepSeek-V4: windows beside compressed tokens, experts by token id at first, between four streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    NUMBERED,
    AttentionSizes,
    CacheSpec,
    Clamp,
    CompressedAttention,
    Compressor,
    CompressSizes,
    Config,
    Entries,
    EntryIndex,
    Experts,
    GroupRoute,
    HyperHead,
    HyperLayer,
    HyperRule,
    LayerCache,
    Norm,
    Rope,
    Step,
    Weights,
    build_clamped,
    build_connections,
    build_experts,
    build_parts,
    make_rope,
    name_factors,
)
from parallax_models import deepseek_v4
from parallax_models.blocks.decoder import Decoder
from parallax_models.deepseek_v4 import SPARSE
from parallax_models.sliding import SLIDING

SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrtsoftplus": lambda scores: functional.softplus(scores).sqrt(),
    "softmax": lambda scores: scores.softmax(-1),
    "sigmoid": torch.sigmoid,
}
ATTENTION = {
    "q_a_proj": "wq_a",
    "q_a_norm": "q_norm",
    "q_b_proj": "wq_b",
    "kv_proj": "wkv",
    "kv_norm": "norm",
    "gate_proj": "wgate",
    "position_bias": "ape",
    "o_a_proj": "wo_a",
    "o_b_proj": "wo_b",
    "sinks": "attn_sink",
}
"""The names of the parts here, and in files."""


@dataclass(frozen=True, eq=False, slots=True)
class HashedPart:
    """Experts that are chosen by token id; their shares are those of the router."""

    experts: Experts
    route: GroupRoute
    table: torch.Tensor
    """The experts of each token id, int64 of shape [vocab size, chosen]."""

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:  # noqa: ARG002 -- of attention
        """Return the output: [tokens, width]."""
        chosen = self.table[step.tokens]
        return self.experts.run(x, None, chosen, self.route.share(self.route.score(self.experts.score(x)), chosen))


class DeepseekV4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.shape = replace(self.shape, after=("hc_head",))
        self.kinds, self.hashed = deepseek_v4.list_kinds(self.config), deepseek_v4.list_hashed(self.config)
        self.ropes = {kind: make_kind_rope(self.config, kind) for kind in ("main", "compress")}
        self.score = SCORES[self.config.choose(tuple(SCORES), "scoring_func", default="sqrtsoftplus")]
        self.rule = HyperRule.read(self.config, self.shape.eps)
        self.sizes = AttentionSizes(
            num_heads=self.config.count("num_attention_heads"),
            width=self.config.count("head_dim"),
            num_groups=self.config.count("o_groups"),
            window=self.config.count("sliding_window"),
            eps=self.shape.eps,
        )

    def list_entries(self, kind: str) -> list[CompressSizes]:
        """Return the sizes of the entries of a layer, and of those of its index."""
        if kind == SLIDING:
            return []
        rate, index = deepseek_v4.read_rate(self.config, kind), self.config.count("index_head_dim")
        widths = [self.sizes.width, index] if kind == SPARSE else [self.sizes.width]
        return [CompressSizes(rate, width, overlaps=kind == SPARSE) for width in widths]

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: a key, the raw numbers of entries; and entries."""
        kind = self.kinds[index]
        entries = self.list_entries(kind)
        widths = tuple((1, each.width) for each in entries)
        far = CacheSpec("latent", widths, stride=entries[0].stride) if entries else None
        shapes = (1, self.sizes.width), *((1, each.raw) for each in entries)
        return CacheSpec("window", shapes, deepseek_v4.find_window(self.config, kind), beside=far)

    def build_layer(self, index: int, weights: Weights) -> HyperLayer:
        """Build a layer between streams."""
        experts, route = self.build_experts(index, weights)
        norms = [Norm.read(weights, f"{name}_norm", self.shape.eps) for name in ("attn", "ffn")]
        connections = build_connections(weights, self.rule)
        before, after = build_parts(connections, norms, self.build_compressed(index, weights), experts)
        if self.hashed[index]:
            table = weights.read_plain("ffn.gate.tid2eid").to(weights.factory.device)
            after = replace(after, run=HashedPart(experts, route, table))
        head = name_factors(weights.top().within("hc_head"), "hc")
        is_last = index == self.shape.num_layers - 1
        return HyperLayer(
            (before, after), 0 if index else self.rule.num, HyperHead(head, self.rule) if is_last else None
        )

    def build_compressed(self, index: int, weights: Weights) -> CompressedAttention:
        """Build attention, with what makes entries if the layer has some."""
        kind, weights = self.kinds[index], weights.within("attn").rename(**ATTENTION)
        rope, entries = self.ropes["main" if kind == SLIDING else "compress"], None
        if sizes := self.list_entries(kind):
            found = Compressor(weights.within("compressor"), sizes[0], rope, self.shape.eps)
            entries = Entries(found, self.build_index(weights, sizes[1], rope) if kind == SPARSE else None)
        return CompressedAttention(weights, self.sizes, rope, entries)

    def build_index(self, weights: Weights, sizes: CompressSizes, rope: Rope) -> EntryIndex:
        """Build the index of entries, from the weights of attention."""
        weights, config = weights.within("indexer"), self.config
        compressor = Compressor(weights.within("compressor"), sizes, rope, self.shape.eps)
        return EntryIndex(
            weights, compressor, config.count("index_n_heads"), config.count("index_topk", default=512), rope
        )

    def build_experts(self, index: int, weights: Weights) -> tuple[Experts, GroupRoute]:
        """Build experts with one that every token meets, and what chooses them unless token ids do."""
        weights, config = weights.within("ffn").rename(**NUMBERED), self.config
        clamp, num = Clamp(config.number("swiglu_limit", 10.0)), config.count("n_routed_experts")
        route = GroupRoute(
            num_chosen=config.count("num_experts_per_tok"),
            correction=None if self.hashed[index] else weights.read_vector("gate.bias"),
            score=self.score,
            scale=config.number("routed_scaling_factor", 1.5),
        )
        # Not with ``gate.bias``, which corrects the choice alone.
        router = weights.keep_linear(weights.read_plain("gate.weight"), None, purpose="router")
        shared = build_clamped(weights.within("shared_experts"), clamp)
        return Experts(router, build_experts(weights, num, clamp=clamp), route, shared), route


def make_kind_rope(config: Config, kind: str) -> Rope:
    """Return the rope of layers of one kind: ``main``, or ``compress`` where there are entries."""
    width, found = config.count("head_dim"), dict(config.table("rope_parameters") or config.table("rope_scaling"))
    share = config.number("partial_rotary_factor", config.count("qk_rope_head_dim", default=64) / width)
    if isinstance(found.get(kind), Mapping):
        found = dict(found[kind])
    elif kind == "main":
        found = {"rope_theta": config.number("rope_theta", 10_000.0)}
    else:
        found["rope_type"] = found.pop("type", found.get("rope_type", "default"))
        found["rope_theta"] = config.number("compress_rope_theta", 160_000.0)
        found.setdefault("attention_factor", 1.0)  # YaRN's factor of cosines and sines is not used
    settings = {"partial_rotary_factor": share, **found}
    return make_rope(Config({**config.raw, "rope_parameters": settings}), width)
