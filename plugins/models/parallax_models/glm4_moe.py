"""GLM-4.5 to 4.7."""

from __future__ import annotations

from collections.abc import Iterator

from parallax_core.api import ConfigReader, LayerShape
from parallax_models.deepseek_v3 import list_sparse, read_experts
from parallax_models.family import Family
from parallax_models.weights import Heads, gated_mlp


def read_layers(settings: ConfigReader) -> Iterator[LayerShape]:
    """Yield the layers: the first without experts, the others with some, and one that every token meets."""
    heads, experts = Heads.read(settings), read_experts(settings)
    attention = heads.projections(bias=settings.flag("attention_bias", default=False))
    attention += 2 * heads.width * settings.flag("use_qk_norm", default=False)
    common = heads.layer(attention + 2 * heads.hidden)
    dense = heads.layer(common.weights + gated_mlp(heads.hidden, settings.count("intermediate_size")))
    shared = gated_mlp(heads.hidden, experts.inner * settings.count("n_shared_experts")) + experts.num
    for sparse in list_sparse(settings, 1):
        yield experts.join(common, shared) if sparse else dense


ADAPTER = Family(read_layers)
