"""GLM-5.3-Flash: four streams, Kimi delta attention, and latent attention to the blocks of an index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, Plane, Unsupported
from parallax_models import kimi_linear
from parallax_models.deepseek_v3 import add_mlp, list_sparse, read_latent
from parallax_models.family import Family
from parallax_models.glm_moe_dsa import CHOSEN, list_indexed
from parallax_models.qwen3_next import LINEAR
from parallax_models.sliding import FULL, list_periodic
from parallax_models.streams import HIDDEN, spread
from parallax_models.weights import add_weights


def unify(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings with the names of `kimi_linear`."""
    given = {name: value for name, value in settings.items() if value is not None and name != "head_dim"}
    found = {**kimi_linear.unify(given), "tie_word_embeddings": given.get("tie_word_embeddings", False)}
    if settings.get("linear_lower_bound", 0) is None:
        found["linear_lower_bound"] = 0.0
    if isinstance(kinds := found.get("layer_types"), list):
        found["layer_types"] = [FULL if kind == "indexed_attention" else kind for kind in kinds]
    return found


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers."""
    return spread(settings, _read_parts(settings), num_scales=3)


def list_kinds(settings: ConfigReader) -> tuple[str, ...]:
    """Return the kind of each layer.

    Raises:
        Unsupported: if latent attention would know positions.
    """
    if settings.size("qk_rope_head_dim"):
        raise Unsupported("'qk_rope_head_dim' in config.json is not 0", "fetch the model again")
    return settings.list_words("layer_types", (FULL, LINEAR), list_periodic(settings, 4, LINEAR))


def list_borrowing(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer attends to what the index of the layer before it chose.

    Raises:
        Unsupported: if there is no index in that.
    """
    kinds, have_index = list_kinds(settings), list_indexed(settings)
    found = [kind == FULL and not has_index for kind, has_index in zip(kinds, have_index, strict=True)]
    for index, borrows in enumerate(found):
        if borrows and (not index or kinds[index - 1] != FULL or found[index - 1]):
            message = (
                f"'indexer_types' in config.json has layer {index} use the index of the one before, which has none"
            )
            raise Unsupported(message, "fetch the model again")
    return tuple(found)


def _read_parts(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers without their streams."""
    borrowing, chosen = list_borrowing(settings), settings.count("index_topk") + settings.count("index_kpool") - 1
    planes = Plane(HIDDEN, (settings.count("hidden_size"),)), Plane(CHOSEN, (chosen,), "int32")
    parts = zip(list_kinds(settings), list_sparse(settings, 3), borrowing, (*borrowing[1:], False), strict=True)
    for kind, is_sparse, borrows, lends in parts:
        layer = kimi_linear.read_delta(settings) if kind == LINEAR else read_latent(settings)
        if kind == FULL and not borrows:
            layer = replace(add_index(settings, layer), gives=planes if lends else ())
        elif borrows:
            layer = replace(layer, takes=(HIDDEN, CHOSEN))
        yield add_mlp(settings, layer, is_sparse=is_sparse)


def add_index(settings: ConfigReader, layer: LayerShape) -> LayerShape:
    """Return a layer with an index added, which keeps a key and weights of each token for the key of its block."""
    hidden, rank = settings.count("hidden_size"), settings.count("q_lora_rank")
    num, width, block = (settings.count(f"index_{name}") for name in ("n_heads", "head_dim", "kpool"))
    if settings.count("index_topk") % block or not settings.flag("index_kpool_always_select_tail", default=True):
        message = f"'index_topk' in config.json is not of whole blocks of {block}, or their rest is left out"
        raise Unsupported(message, "fetch the model again")
    extra = rank * num * width + hidden * (2 * width + num) + width * (block + 2)
    flops = 4 * settings.count("num_attention_heads") * layer.kv_width + 2 * num * width // block
    return add_weights(layer, extra, kv_width=layer.kv_width + 2 * width, context_flops=flops)


ADAPTER = Family(read_layers, unify=unify)
