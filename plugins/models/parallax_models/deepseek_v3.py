"""DeepSeek-V3 and R1: latent attention, shared and routed experts."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.family import Family
from parallax_models.weights import Experts, gated_mlp

DENSE, SPARSE = "dense", "sparse"


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; a token's cache is its latent and the part of its key with rope."""
    hidden = settings.count("hidden_size")
    common = count_attention(settings) + 2 * hidden
    dense = gated_mlp(hidden, settings.count("intermediate_size"))
    experts = read_experts(settings)
    shared = gated_mlp(hidden, experts.inner * settings.count("n_shared_experts"))
    shared += experts.num  # the router's correction
    for sparse in list_sparse(settings):
        yield LayerShape(
            kind="latent",
            weights=common + (experts.all + shared if sparse else dense),
            active_weights=common + (experts.active + shared if sparse else dense),
            kv_width=settings.count("kv_lora_rank") + settings.count("qk_rope_head_dim"),
            num_experts=experts.num if sparse else 0,
            num_active_experts=experts.num_chosen if sparse else 0,
        )


def list_sparse(settings: ConfigReader, num_dense: int = 0) -> tuple[bool, ...]:
    """Return whether each layer has experts; ``num_dense`` at first do not, unless config.json differs."""
    num_layers, first = settings.count("num_hidden_layers"), settings.size("first_k_dense_replace", num_dense)
    kinds = [DENSE if index < first else SPARSE for index in range(num_layers)]
    return tuple(kind == SPARSE for kind in settings.list_words("mlp_layer_types", (DENSE, SPARSE), kinds))


def read_experts(settings: ConfigReader) -> Experts:
    """Return the routed experts of a layer that has some."""
    return Experts(
        hidden=settings.count("hidden_size"),
        inner=settings.count("moe_intermediate_size"),
        num=settings.count("n_routed_experts", "num_local_experts"),
        num_chosen=settings.count("num_experts_per_tok"),
    )


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
