"""Gemma 4, the text model: shared keys, inputs of each layer by token id, experts beside the MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch.nn import functional

from parallax_backend_torch.api import (
    SLIDING,
    CacheSpec,
    Carried,
    Config,
    Expert,
    Experts,
    GatedMlp,
    Heads,
    Layer,
    LayerCache,
    MappedTable,
    Mixer,
    Norm,
    Packed,
    Pool,
    Rope,
    Rule,
    SlotMapping,
    SoftmaxRoute,
    Step,
    Weights,
    attend,
    check_choice,
    make_rope,
    read_rope,
    rotate,
    store,
)
from parallax_core.api import Unsupported
from parallax_models.blocks.decoder import Decoder, turn_whole
from parallax_models.gemma4 import LayerPlan, plan_layers

NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
UNUSED = ("k_proj.weight", "v_proj.weight", "k_norm.weight", "v_norm.weight")
"""Tensors that checkpoints may have in layers that read the keys of others."""
EMBEDDED = "gemma4.embedded"
"""The key of the rows of a step's tokens in `Step.shared`."""
HALF = 2**-0.5


@dataclass(frozen=True, eq=False, slots=True)
class SharedAttention:
    """Attention over keys and values of its own, or of an earlier layer."""

    heads: Heads
    rope: Rope
    rule: Rule
    into: Packed
    """Makes queries, and in a layer with keys of its own those, and values unless they are made of the same numbers."""
    back: Packed
    query_norm: Norm
    key_norm: Norm | None
    """None: the layer reads the keys and values of an earlier one."""
    value_norm: Norm
    is_steady: ClassVar[bool] = True

    def __call__(self, x: torch.Tensor, step: Step, cache: LayerCache) -> torch.Tensor:
        """Return the output: [tokens, width of the model]."""
        heads, places, pool = self.heads, cache.places, Pool(*cache.kept)
        assert isinstance(places, SlotMapping)
        mixed = self.into.apply(x).unflatten(1, (-1, heads.width))
        angles = step.find_angles(self.rope)
        queries = self.query_norm(mixed[:, : heads.queries])
        rotate(queries, angles)
        if self.key_norm is not None:
            raw = mixed[:, heads.queries : heads.queries + heads.keys]
            keys, values = self.key_norm(raw), self.value_norm(mixed[:, -heads.keys :])
            rotate(keys, angles)
            store(pool, keys, values, places)
        return self.back.apply(attend(queries, pool, places, self.rule).flatten(1))


@dataclass(frozen=True, eq=False, slots=True)
class TokenInput:
    """What a layer adds for each token by its id: from its columns of a table, and from the embedding."""

    embedding: MappedTable
    table: MappedTable
    columns: slice
    projection: Packed
    projection_norm: Norm
    gate: Packed
    back: Packed
    norm: Norm

    def __call__(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        """Return what is added to ``hidden``, both [tokens, width]."""
        if EMBEDDED not in step.shared:
            step.shared[EMBEDDED] = self.embedding.gather(step.tokens)
        projected = self.projection_norm(self.projection.apply(step.shared[EMBEDDED]))
        width = self.columns.stop - self.columns.start
        by_id = self.table.gather(step.tokens, self.columns) * width**0.5
        gated = functional.gelu(self.gate.apply(hidden), approximate="tanh") * ((projected + by_id) * HALF)
        return self.norm(self.back.apply(gated))


@dataclass(frozen=True, eq=False, slots=True)
class SharingLayer:
    """A layer."""

    attention: SharedAttention
    mixer: Mixer
    norms: tuple[Norm, ...]
    """Before attention and after it, before the MLP and after it."""
    experts: ExpertPart | None
    token_input: TokenInput | None
    scalar: torch.Tensor
    """The factor of the result, float32 of shape [1]."""

    @property
    def is_steady(self) -> bool:
        """Whether it does the same work in every step; see `parallax_backend_torch.api.Layer`."""
        return self.experts is None and self.token_input is None

    def __call__(self, carried: Carried, step: Step, cache: LayerCache) -> Carried:
        """Return the planes after the layer."""
        before, after, before_mixer, after_mixer = self.norms
        hidden = carried.hidden + after(self.attention(before(carried.hidden), step, cache))
        found = self.mixer(before_mixer(hidden), None)
        if self.experts is not None:
            found = self.experts(hidden, found)
        hidden = hidden + after_mixer(found)
        if self.token_input is not None:
            hidden = hidden + self.token_input(hidden, step)
        return carried.replace(hidden * self.scalar.to(hidden.dtype))


@dataclass(frozen=True, eq=False, slots=True)
class ExpertPart:
    """Experts beside the MLP."""

    experts: Experts
    plain_norm: Norm
    """Without weights of its own: those of router and experts are in their matrices."""
    norms: tuple[Norm, Norm]
    """After the MLP, and after the experts."""

    def __call__(self, hidden: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Return the sum of the MLP's result and that of the experts."""
        after_mlp, after = self.norms
        return after_mlp(found) + after(self.experts(self.plain_norm(hidden), None))


class Gemma4(Decoder):
    """See `parallax_backend_torch.api.Model`."""

    activation: ClassVar[str] = "gelu_pytorch_tanh"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        check_choice(self.config, "hidden_activation", self.activation)
        if self.config.raw.get("use_bidirectional_attention") == "all":
            raise Unsupported("this Gemma attends to later tokens too", "choose a model that generates text")
        self.plans = plan_layers(self.config)
        self.width = self.config.size("hidden_size_per_layer_input", 256)
        tables = ("embed_tokens_per_layer", "embed_tokens") if self.width else ()
        shared = ("per_layer_model_projection", "per_layer_projection_norm") if self.width else ()
        self.shape = replace(
            self.shape,
            embed_scale=self.shape.hidden_size**0.5,
            soft_cap=self.config.number("final_logit_softcapping", 0.0),
            every=shared,
            mapped=tables,
        )
        self.ropes = {plan.kind: make_wide_rope(self.config, plan) for plan in self.plans}

    def keep_layer(self, index: int) -> CacheSpec:
        """Return the cache of a layer: keys and values, its own or those of an earlier layer."""
        plan = self.plans[index]
        return replace(self._read_heads(plan).keep(self._find_window(plan)), source=plan.source)

    def build_layer(self, index: int, weights: Weights) -> Layer:
        """Build a layer."""
        plan = self.plans[index]
        return SharingLayer(
            attention=self._build_shared(plan, weights.within("self_attn")),
            mixer=GatedMlp(weights.within("mlp"), "gelu_tanh"),
            norms=tuple(Norm.read(weights, name, self.shape.eps) for name in NORMS),
            experts=self._build_experts(weights) if self.config.flag("enable_moe_block", default=False) else None,
            token_input=self._build_input(index, weights) if self.width else None,
            scalar=weights.read_vector("layer_scalar"),
        )

    def _read_heads(self, plan: LayerPlan) -> Heads:
        return Heads(self.heads.queries, plan.keys, plan.width)

    def _find_window(self, plan: LayerPlan) -> int:
        return self.config.count("sliding_window", default=512) if plan.kind == SLIDING else 0

    def _build_shared(self, plan: LayerPlan, weights: Weights) -> SharedAttention:
        has_keys = plan.source is None
        own = ["k_proj"] if plan.shares_values else ["k_proj", "v_proj"]
        if not has_keys:
            weights.leave(*UNUSED)
        return SharedAttention(
            heads=self._read_heads(plan),
            rope=self.ropes[plan.kind],
            rule=Rule(1.0, self._find_window(plan), narrow=weights.factory.narrow),
            into=weights.make_linear("q_proj", *(own if has_keys else ())),
            back=weights.make_linear("o_proj"),
            query_norm=Norm.read(weights, "q_norm", self.shape.eps),
            key_norm=Norm.read(weights, "k_norm", self.shape.eps) if has_keys else None,
            value_norm=Norm.plain(weights, plan.width, self.shape.eps),
        )

    def _build_input(self, index: int, weights: Weights) -> TokenInput:
        columns, top = slice(index * self.width, (index + 1) * self.width), weights.top()
        rows = top.map_table("per_layer_model_projection").view[columns]  # the scales of both tables cancel out
        return TokenInput(
            embedding=top.map_table("embed_tokens"),
            table=top.map_table("embed_tokens_per_layer"),
            columns=columns,
            projection=weights.keep_linear(rows, None),
            projection_norm=Norm.read(top, "per_layer_projection_norm", self.shape.eps),
            gate=weights.make_linear("per_layer_input_gate"),
            back=weights.make_linear("per_layer_projection"),
            norm=Norm.read(weights, "post_per_layer_input_norm", self.shape.eps),
        )

    def _build_experts(self, weights: Weights) -> ExpertPart:
        config, hidden = self.config, self.shape.hidden_size
        into, back = (weights.read_plain(f"experts.{name}").float() for name in ("gate_up_proj", "down_proj"))
        norm = weights.read_plain("pre_feedforward_layernorm_2.weight").float()
        router = weights.read_plain("router.proj.weight").float()
        scale = weights.read_plain("router.scale").float() * hidden**-0.5
        made = [
            Expert(weights.keep_linear(each * norm, None), weights.keep_linear(other, None), "gelu_tanh")
            for each, other in zip(into, back, strict=True)
        ]
        scales = weights.read_vector("router.per_expert_scale")
        route = SoftmaxRoute(config.count("top_k_experts"), is_normalised=True, scales=scales)
        return ExpertPart(
            experts=Experts(weights.keep_linear(router * scale, None, purpose="router"), made, route),
            plain_norm=Norm.plain(weights, hidden, self.shape.eps),
            norms=(
                Norm.read(weights, "post_feedforward_layernorm_1", self.shape.eps),
                Norm.read(weights, "post_feedforward_layernorm_2", self.shape.eps),
            ),
        )


def make_wide_rope(config: Config, plan: LayerPlan) -> Rope:
    """Return the rope of a kind of layer; one of the type ``proportional`` leaves the last pairs as they are."""
    settings = read_rope(config, plan.kind)
    if settings.get("rope_type") != "proportional" or plan.width > 2**16:  # which is refused there
        return make_rope(Config({**config.raw, "rope_parameters": turn_whole(settings)}), plan.width)
    count = int(float(settings.get("partial_rotary_factor", 1.0)) * plan.width // 2)
    steps = torch.arange(0, 2 * count, 2, dtype=torch.float32) / plan.width
    turned = 1.0 / (float(settings["rope_theta"]) ** steps) / float(settings.get("factor", 1.0))
    return Rope(torch.cat([turned, torch.zeros(plan.width // 2 - count)]))
