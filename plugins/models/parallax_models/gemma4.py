"""Gemma 4, the text model: later layers may read the keys of earlier ones, and all look up rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from parallax_core.api import ConfigReader, LayerShape, Part, TokenUse, Unsupported
from parallax_models.family import PREFIX, Family
from parallax_models.sliding import FULL, SLIDING
from parallax_models.weights import gated_mlp

TABLES = "embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"
EVERY = re.compile(rf"{PREFIX}(?:model\.)?(?:{'|'.join(TABLES)})\.")


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What one layer has."""

    kind: str
    """``full_attention`` or ``sliding_attention``."""
    source: int | None
    """The layer whose keys and values it reads; None: its own."""
    width: int
    """Of a head."""
    keys: int
    """The number of heads of keys, and of values."""
    shares_values: bool
    """Whether its values are made of the projection to keys."""
    inner: int
    """The width of its MLP."""


def plan_layers(settings: ConfigReader) -> list[LayerPlan]:
    """Return what each layer has.

    Raises:
        Unsupported: if layers would read the keys of a layer that there is not.
    """
    count, num_shared = settings.count("num_hidden_layers"), settings.size("num_kv_shared_layers", 0)
    default = [SLIDING if (index + 1) % 6 and index + 1 < count else FULL for index in range(count)]
    kinds = settings.list_words("layer_types", (FULL, SLIDING), default)
    first = count - num_shared
    last = {kind: index for index, kind in enumerate(kinds[: max(first, 0)])}
    lacking = [kind for kind in kinds[max(first, 0) :] if kind not in last]
    if lacking:
        message = (
            f"'num_kv_shared_layers' in config.json is {num_shared}, and by 'layer_types' none has keys of {lacking[0]}"
        )
        raise Unsupported(message, "fetch the model again")
    sources = [last[kind] if index >= first else None for index, kind in enumerate(kinds)]
    return [_plan_layer(settings, index, *each) for index, each in enumerate(zip(kinds, sources, strict=True))]


def _plan_layer(settings: ConfigReader, index: int, kind: str, source: int | None) -> LayerPlan:
    shares_values = kind == FULL and settings.flag("attention_k_eq_v", default=False)
    heads = _read_heads(settings, index, kind, shares_values=shares_values)
    doubles = source is not None and settings.flag("use_double_wide_mlp", default=False)
    return LayerPlan(
        kind=kind,
        source=source,
        width=heads.count("head_dim", default=256),
        keys=heads.count("num_key_value_heads"),
        shares_values=shares_values,
        inner=settings.count("intermediate_size") * (1 + doubles),
    )


def _read_heads(settings: ConfigReader, index: int, kind: str, *, shares_values: bool) -> ConfigReader:
    """Return the settings of a layer's heads: transformers writes what differs by layer, and older files by kind."""
    own = {name: settings.raw.get(name) for name in ("head_dim", "num_key_value_heads")}
    if settings.has("per_layer_config"):
        changes = settings.table("per_layer_config").get(str(index), {})
        return ConfigReader({**own, **changes} if isinstance(changes, Mapping) else {})
    if kind == FULL:
        own["head_dim"] = settings.count("global_head_dim", default=512)
    if shares_values and settings.has("num_global_key_value_heads"):
        own["num_key_value_heads"] = settings.count("num_global_key_value_heads")
    return ConfigReader(own)


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    hidden, width = settings.count("hidden_size"), settings.size("hidden_size_per_layer_input", 256)
    for index, plan in enumerate(plan_layers(settings)):
        layer = _count_experts(settings, _count_dense(settings, plan))
        if width:
            layer = _add_tables(settings, layer, width * (2 * hidden) + hidden, width)
        if index == 0 and width:  # the norm that all layers share
            layer = replace(layer, weights=layer.weights + width)
        yield layer


def _count_dense(settings: ConfigReader, plan: LayerPlan) -> LayerShape:
    """Return a layer of attention, an MLP and a scalar."""
    hidden, bias = settings.count("hidden_size"), settings.flag("attention_bias", default=False)
    queries, keys = settings.count("num_attention_heads") * plan.width, plan.keys * plan.width
    attention = 2 * hidden * queries + plan.width + (queries + hidden) * bias
    if plan.source is None:
        attention += (hidden + bias) * keys * (1 if plan.shares_values else 2) + plan.width
    weights = attention + gated_mlp(hidden, plan.inner) + 4 * hidden + 1
    return LayerShape(
        kind="full" if plan.kind == FULL else "window",
        weights=weights,
        active_weights=weights,
        kv_width=2 * keys if plan.source is None else 0,
        window=0 if plan.kind == FULL else settings.count("sliding_window", default=512),
        source=plan.source,
        context_flops=4 * queries,
    )


def _count_experts(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with its experts beside the MLP, if the model has some."""
    if not settings.flag("enable_moe_block", default=False):
        return layer
    hidden, num, chosen = (settings.count(name) for name in ("hidden_size", "num_experts", "top_k_experts"))
    each, others = gated_mlp(hidden, settings.count("moe_intermediate_size")), (hidden + 1) * num + 4 * hidden
    return replace(
        layer,
        weights=layer.weights + others + num * each,
        active_weights=layer.active_weights + others + chosen * each,
        num_experts=num,
        num_active_experts=chosen,
    )


def _add_tables(settings: ConfigReader, layer: LayerShape, weights: int, width: int) -> LayerShape:
    """Return a layer with ``weights`` for its input by token id, its columns of the table, and rows of a projection."""
    table = width * settings.count("vocab_size_per_layer_input", default=262_144)
    rows = width * settings.count("hidden_size")
    return replace(
        layer,
        weights=layer.weights + weights + rows + table,
        active_weights=layer.active_weights + weights + rows,
        table_weights=table,
        tokens=TokenUse(has_embedding=True),
    )


class Gemma4(Family):
    """The adapter: some tensors outside the layers have a slice for each layer."""

    @staticmethod
    def find_part(tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        return "every" if EVERY.match(tensor) else Family.find_part(tensor)


ADAPTER = Gemma4(read_layers, is_tied=True, turns_part=True)
