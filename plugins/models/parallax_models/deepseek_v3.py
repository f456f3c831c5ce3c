"""DeepSeek-V3 and R1: latent attention, shared and routed experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Experts, add_weights, count_mlp, gated_mlp

DENSE, SPARSE = "dense", "sparse"


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    for sparse in list_sparse(settings):
        yield add_mlp(settings, read_latent(settings), is_sparse=sparse)


def read_latent(settings: ConfigReader) -> LayerShape:
    """Return a layer without its MLP; a token's cache is its latent and the part of its key with rope."""
    weights = count_attention(settings) + 2 * settings.count("hidden_size")
    width = settings.count("kv_lora_rank") + settings.size("qk_rope_head_dim")
    return LayerShape(kind="latent", weights=weights, active_weights=weights, kv_width=width)


def add_mlp(settings: ConfigReader, layer: LayerShape, *, is_sparse: bool) -> LayerShape:
    """Return a layer with an MLP added, or experts, the router's correction and those that every token meets."""
    if not is_sparse:
        return add_weights(layer, count_mlp(settings))
    experts = read_experts(settings)
    shared = gated_mlp(experts.hidden, experts.inner * settings.count("n_shared_experts", default=1))
    return experts.join(layer, shared + experts.num)


def list_sparse(settings: ConfigReader, num_dense: int = 0) -> tuple[bool, ...]:
    """Return whether each layer has experts; ``num_dense`` at first do not, unless config.json differs."""
    num_layers, first = settings.count("num_hidden_layers"), settings.size("first_k_dense_replace", num_dense)
    kinds = [DENSE if index < first else SPARSE for index in range(num_layers)]
    return tuple(kind == SPARSE for kind in settings.list_words("mlp_layer_types", (DENSE, SPARSE), kinds))


def read_experts(settings: ConfigReader) -> Experts:
    """Return the routed experts of a layer that has some."""
    return Experts.read(settings, "moe_intermediate_size", "n_routed_experts", "num_local_experts")


def count_attention(settings: ConfigReader) -> int:
    """Return the parameters of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
    hidden, num = settings.count("hidden_size"), settings.count("num_attention_heads")
    bias = settings.flag("attention_bias", default=False)
    plain, rotated = settings.count("qk_nope_head_dim"), settings.size("qk_rope_head_dim")
    value, latent = settings.count("v_head_dim"), settings.count("kv_lora_rank")
    queries = num * (plain + rotated)
    if settings.has("q_lora_rank"):
        rank = settings.count("q_lora_rank")
        query = hidden * rank + rank * bias + rank + rank * queries
    else:
        query = hidden * queries
    down = (hidden + bias) * (latent + rotated) + latent
    return query + down + latent * num * (plain + value) + num * value * hidden + hidden * bias


ADAPTER = Family(read_layers)
