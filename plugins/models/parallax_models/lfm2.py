"""LFM2: short convolutions, and attention in some layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, Unsupported
from parallax_models.family import Family
from parallax_models.sliding import FULL
from parallax_models.weights import Heads, gated_mlp

CONV = "conv"


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names of other families."""
    is_tied = settings.get("tie_embedding", settings.get("tie_word_embeddings"))
    eps = ConfigReader(settings).number("norm_eps", 1e-5)
    return {**settings, "rms_norm_eps": eps, "tie_word_embeddings": is_tied}


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    heads, hidden = Heads.read(settings), settings.count("hidden_size")
    common = gated_mlp(hidden, find_inner(settings)) + 2 * hidden
    attention = heads.layer(heads.projections() + 2 * heads.width + common)
    for kind in read_kinds(settings):
        yield read_conv(settings, common) if kind == CONV else attention


def read_conv(settings: ConfigReader, common: int) -> LayerShape:
    """Return a layer with a short convolution, and ``common`` parameters beside it."""
    hidden, bias = settings.count("hidden_size"), settings.flag("conv_bias", default=False)
    kernel = settings.count("conv_L_cache", default=3)
    weights = common + hidden * (4 * hidden + kernel) + 5 * hidden * bias
    return LayerShape(kind="state", weights=weights, active_weights=weights, state_width=hidden * (kernel - 1))


def read_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer, by ``layer_types`` or the numbers of the layers with attention."""
    num_layers, chosen = settings.count("num_hidden_layers"), settings.list_numbers("full_attn_idxs")
    has_all = not settings.has("full_attn_idxs")
    default = [FULL if has_all or index in chosen else CONV for index in range(num_layers)]
    return settings.list_words("layer_types", (FULL, CONV), default)


def find_inner(settings: ConfigReader) -> int:
    """Return the width inside the MLP: two thirds of what config.json says, rounded up to whole blocks."""
    inner = settings.count("intermediate_size", "block_ff_dim")
    if not settings.flag("block_auto_adjust_ff_dim", default=True):
        return inner
    block = settings.count("block_multiple_of", default=256)
    inner = int(settings.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
    if inner < 1:
        raise Unsupported(
            f"'block_ffn_dim_multiplier' in config.json makes the MLP {inner} wide", "fetch the model again"
        )
    return -(-inner // block) * block


ADAPTER = Family(read_layers, is_tied=True, unify=unify)
