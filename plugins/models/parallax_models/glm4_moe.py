"""GLM-4.5 to 4.7."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.deepseek_v3 import add_mlp, list_sparse
from parallax_models.dense import Dense
from parallax_models.family import Family


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: the first without experts, the others with some, and one that every token meets."""
    has_norms = settings.flag("use_qk_norm", default=False)
    layer = Dense(output_bias="", head_norms="each" if has_norms else "").read_attention(settings)
    for sparse in list_sparse(settings, 1):
        yield add_mlp(settings, layer, is_sparse=sparse)


ADAPTER = Family(read_layers, turns_part=True)
