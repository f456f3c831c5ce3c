"""DeepSeek-V3.2: as V3, with an index of the tokens that each token attends to."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models import deepseek_v3
from parallax_models.family import Family
from parallax_models.weights import add_weights


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers; a token's cache has its key in the index, too."""
    for layer in deepseek_v3.read_layers(settings):
        yield add_index(settings, layer)


def add_index(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with an index added."""
    hidden, rank = settings.count("hidden_size"), settings.count("q_lora_rank")
    num, width = settings.count("index_n_heads"), settings.count("index_head_dim")
    extra = rank * num * width + hidden * width + 2 * width + hidden * num
    return add_weights(
        layer,
        extra,
        kv_width=layer.kv_width + width,
        context_flops=4 * settings.count("num_attention_heads") * layer.kv_width + 2 * num * width,
    )


ADAPTER = Family(read_layers)
