"""DeepSeek-V4: windows beside compressed tokens, experts by token id at first, between four streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    NUMBERED,
    CacheSpec,
    Clamp,
    Compressor,
    CompressSizes,
    Config,
    Decoder,
    EntryIndex,
    Experts,
    GroupRoute,
    HyperHead,
    HyperLayer,
    HyperRule,
    LayerCache,
    Norm,
    Rope,
    Seen,
    SeenRow,
    SlotMapping,
    Step,
    Weights,
    attend_both,
    build_clamped,
    build_connections,
    build_experts,
    build_parts,
    list_rows,
    make_rope,
    multiply_heads,
    name_factors,
    rotate_pairs,
    see_window,
)
from parallax_models import deepseek_v4
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


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSizes:
    """The sizes of attention that its matrices do not say."""

    num_heads: int
    width: int
    num_groups: int
    """The groups of heads whose results become narrow together."""
    window: int
    eps: float


@dataclass(frozen=True, eq=False, slots=True)
class Entries:
    """Compressed tokens of a layer, and their index, if it has one."""

    compressor: Compressor
    index: EntryIndex | None

    def list_compressors(self) -> list[Compressor]:
        """Return what makes the entries, and those of the index."""
        return [self.compressor, *([self.index.compressor] if self.index else ())]


class CompressedAttention:
    """Attention of one layer; keys are the values too.

    Args:
        weights: those of the layer's attention.
        sizes: the sizes.
        rope: the rope of queries and keys.
        entries: the compressed tokens; None: the layer sees a window alone.
    """

    def __init__(self, weights: Weights, sizes: AttentionSizes, rope: Rope, entries: Entries | None) -> None:
        self._sizes, self._rope, self._entries = sizes, rope, entries
        self._narrow, self._query = weights.make_linear("q_a_proj"), weights.make_linear("q_b_proj")
        self._narrow_norm = Norm.read(weights, "q_a_norm", sizes.eps)
        self._head_norm = Norm.plain(weights, sizes.width, sizes.eps)
        self._key, self._key_norm = weights.make_linear("kv_proj"), Norm.read(weights, "kv_norm", sizes.eps)
        self._sinks = weights.read_vector("sinks")
        groups = weights.read_plain("o_a_proj.weight").unflatten(0, (sizes.num_groups, -1))
        self._groups = weights.keep_stack(groups.transpose(1, 2))
        self._back = weights.make_linear("o_b_proj")

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output plus ``residual``: [tokens, width of the model]."""
        sizes, angles, places = self._sizes, step.find_angles(self._rope), cache.places
        assert isinstance(places, SlotMapping)
        narrow = self._narrow_norm(self._narrow.apply(x))
        query = self._head_norm(self._query.apply(narrow).unflatten(1, (sizes.num_heads, -1)))
        key = self._key_norm(self._key.apply(x))[:, None]
        rotate_pairs(query, angles)
        rotate_pairs(key, angles)
        cache.kept[0][places.slots] = key.to(cache.kept[0].dtype)
        found = torch.empty_like(query)
        for row, far in self._list_seen(x, narrow, step, cache):
            seen = see_window(row, cache.kept[0], sizes.window)
            found[row.part] = attend_both(query[row.part], seen, far, sizes.width**-0.5, self._sinks).to(query.dtype)
        rotate_pairs(found, angles, -1)
        grouped = multiply_heads(found.flatten(1).unflatten(1, (sizes.num_groups, -1)), self._groups)
        return self._back.apply(grouped.flatten(1), residual)

    def _list_seen(
        self, x: torch.Tensor, narrow: torch.Tensor, step: Step, cache: LayerCache
    ) -> Iterator[tuple[SeenRow, Seen]]:
        """Yield the rows of a step, each with the entries that its tokens see, new ones among them."""
        assert isinstance(cache.places, SlotMapping)
        rows, entries, device = list(list_rows(cache.places, x.device)), self._entries, x.device
        if entries is None or cache.beside is None:
            nothing = torch.zeros(0, dtype=torch.int64, device=device)
            for row in rows:
                is_seen = torch.zeros(len(row.positions), 0, dtype=torch.bool, device=device)
                yield row, Seen(cache.kept[0], nothing, is_seen)
            return
        positions = torch.cat([row.positions for row in rows])
        for compressor, raw in zip(entries.list_compressors(), cache.kept[1:], strict=True):
            compressor.store(x, positions, raw[:, 0], cache.places.slots)
        assert isinstance(cache.beside.places, SlotMapping)
        asked = entries.index.prepare(x, narrow, step) if entries.index else None
        for row, far in zip(rows, list_rows(cache.beside.places, device), strict=True):
            for compressor, raw, kept in zip(
                entries.list_compressors(), cache.kept[1:], cache.beside.kept, strict=True
            ):
                compressor.compress(row, far, raw[:, 0], kept[:, 0])
            count = len(far.slots) // entries.compressor.sizes.rate
            number = torch.arange(count, device=device)
            is_seen = number < ((row.positions + 1) // entries.compressor.sizes.rate)[:, None]
            slots = entries.compressor.find_slots(far, count)
            if entries.index and asked and count > entries.index.num_chosen:
                keys = cache.beside.kept[1][entries.index.compressor.find_slots(far, count), 0]
                chosen = entries.index.choose(asked[0][row.part], asked[1][row.part], keys, is_seen)
                slots, is_seen = slots[chosen], is_seen.gather(1, chosen)
            yield row, Seen(cache.beside.kept[0], slots, is_seen)


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
        config = Config(deepseek_v4.unify(config.raw))
        super().__init__(config)
        self.shape = replace(self.shape, after=("hc_head",))
        self.kinds, self.hashed = deepseek_v4.list_kinds(config), deepseek_v4.list_hashed(config)
        self.ropes = {kind: make_kind_rope(config, kind) for kind in ("main", "compress")}
        self.score = SCORES[config.choose(tuple(SCORES), "scoring_func", default="sqrtsoftplus")]
        self.rule = HyperRule.read(config, self.shape.eps)
        self.sizes = AttentionSizes(
            num_heads=config.count("num_attention_heads"),
            width=config.count("head_dim"),
            num_groups=config.count("o_groups"),
            window=config.count("sliding_window"),
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
