"""ERNIE 4.5, with experts or without."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Experts, Heads, add_weights, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; those with experts may have one more that every token meets."""
    heads, bias = Heads.read(settings), settings.flag("use_bias", default=False)
    common = heads.layer(heads.projections(bias=bias, output_bias=bias) + 2 * heads.hidden)
    dense = add_weights(common, gated_mlp(heads.hidden, settings.count("intermediate_size"), bias=bias))
    for index in range(settings.count("num_hidden_layers")):
        if experts := read_experts(settings, index):
            shared = experts.inner * settings.size("moe_num_shared_experts", 2)
            yield experts.join(common, gated_mlp(heads.hidden, shared) * bool(shared) + experts.num)
        else:
            yield dense


def read_experts(settings: ConfigReader, index: int) -> Experts | None:
    """Return the experts of a layer; None: it is an MLP."""
    first, last = settings.size("moe_layer_start_index", 1), settings.raw.get("moe_layer_end_index", -1)
    last = settings.count("num_hidden_layers") - 1 if last in (None, -1) else settings.size("moe_layer_end_index")
    if not settings.has("moe_num_experts") or not first <= index <= last:
        return None
    if (index + 1) % settings.count("moe_layer_interval", default=1):
        return None
    return Experts(
        hidden=settings.count("hidden_size"),
        inner=settings.count("moe_intermediate_size"),
        num=settings.count("moe_num_experts"),
        num_chosen=settings.count("moe_k"),
    )


ADAPTER = Family(read_layers, is_tied=True)
