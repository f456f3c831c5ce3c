"""Step 3.5, and the text of Step 3.7: windows with more heads, gates of heads, clamped experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.deepseek_v3 import list_sparse, read_experts
from parallax_models.family import Family
from parallax_models.sliding import FULL, SLIDING, slide_layers
from parallax_models.weights import Heads, count_mlp, gated_mlp

NAMES = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "num_attention_groups": "num_key_value_heads",
    "share_expert_dims": "share_expert_dim",
}
"""The names of published files, and those of transformers."""
DENSE_LAYERS = 3
"""The layers without experts at first, if config.json does not say."""


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names and forms of transformers, whichever config.json has.

    Published files have lists with an entry for each layer, and more for layers that predict further tokens.
    """
    found = {**settings, **{new: settings[old] for old, new in NAMES.items() if old in settings}}
    reader = ConfigReader(found)
    count = reader.count("num_hidden_layers")
    found |= {name: each[:count] for name, each in found.items() if isinstance(each, list)}
    kinds = found["layer_types"] = found.get("layer_types") or [FULL] * count
    if isinstance(other := settings.get("attention_other_setting"), Mapping):
        found.setdefault("num_sliding_attention_heads", other.get("num_attention_heads"))
    if (chosen := settings.get("moe_layers_enum")) is not None:
        sparse = {int(each) for each in (chosen.split(",") if isinstance(chosen, str) else chosen)}
        found["mlp_layer_types"] = ["sparse" if index in sparse else "dense" for index in range(count)]
    if not reader.has("rope_parameters") and isinstance(bases := found.get("rope_theta"), list):
        shares = found.get("partial_rotary_factors") or [1.0] * count
        ropes = {
            kind: {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": share}
            for kind, base, share in zip(kinds, bases, shares, strict=False)
        }
        found["rope_parameters"] = ropes
        del found["rope_theta"]
        ropes.get(FULL, {}).update(reader.table("rope_scaling"))
    return found


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: sliding or full, with experts and one that every token meets, or with an MLP."""
    experts, hidden = read_experts(settings), settings.count("hidden_size")
    kinds = read_kinds(settings)
    dense = count_mlp(settings)
    shared = gated_mlp(hidden, settings.count("share_expert_dim")) + experts.num
    windows = slide_layers(Heads.read(settings).layer(0), settings, kinds)
    for layer, kind, sparse in zip(windows, kinds, list_sparse(settings, DENSE_LAYERS), strict=True):
        heads = read_heads(settings, kind)
        bias = settings.flag("attention_bias", default=False)
        weights = heads.projections(bias=bias, output_bias=bias) + hidden * heads.queries // heads.width
        weights += 2 * heads.width + 2 * hidden + (0 if sparse else dense)
        plain = replace(layer, weights=weights, active_weights=weights, context_flops=4 * heads.queries)
        yield experts.join(plain, shared) if sparse else plain


def read_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer."""
    return settings.list_words("layer_types", (FULL, SLIDING), [FULL] * settings.count("num_hidden_layers"))


def read_heads(settings: ConfigReader, kind: str) -> Heads:
    """Return the heads of a layer of a kind."""
    heads = Heads.read(settings)
    if kind == FULL:
        return heads
    num = settings.count("num_sliding_attention_heads", default=heads.queries // heads.width)
    return replace(heads, queries=num * heads.width)


ADAPTER = Family(read_layers, unify=unify, turns_part=True)
