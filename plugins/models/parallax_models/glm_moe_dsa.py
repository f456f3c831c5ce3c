"""GLM-5: as DeepSeek-V3.2, but layers may use the index of an earlier one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from parallax_core.api import ConfigReader, LayerShape, Plane
from parallax_models import deepseek_v3
from parallax_models.deepseek_v32 import add_index
from parallax_models.family import Family

CHOSEN = "chosen"
"""The plane of the positions that the index of a layer chose for each token, -1 for none."""
OWN, SHARED = "full", "shared"
LETTERS = {"F": OWN, "S": SHARED}
"""The letters for them in ``index_topk_pattern``."""


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers, with an index of their own or without."""
    have_index = list_indexed(settings)
    planes = (
        Plane("hidden", (settings.count("hidden_size"),)),
        Plane(CHOSEN, (settings.count("index_topk"),), "int32"),
    )
    for layer, has_index in zip(deepseek_v3.read_layers(settings), have_index, strict=True):
        if not has_index:
            yield replace(layer, takes=("hidden", CHOSEN))
        else:
            yield replace(add_index(settings, layer), gives=() if all(have_index) else planes)


def list_indexed(settings: ConfigReader) -> tuple[bool, ...]:
    """Return whether each layer has an index of its own, by the rules of transformers."""
    count, pattern = settings.count("num_hidden_layers"), settings.raw.get("index_topk_pattern")
    period, offset = settings.count("index_topk_freq", default=1), settings.size("index_skip_topk_offset", 2)
    kinds = [SHARED if max(index - offset + 1, 0) % period else OWN for index in range(count)]
    if isinstance(pattern, str):
        kinds = [LETTERS.get(letter, letter) for letter in pattern]
    return tuple(kind == OWN for kind in settings.list_words("indexer_types", (OWN, SHARED), kinds))


ADAPTER = Family(read_layers)
