from __future__ import annotations

import pytest

from parallax_cluster.model_variants import ModelVariants, Variant
from parallax_cluster.node.executor.variant_weights import VariantWeights
from parallax_core.node.executor.weights_check import DifferentWeights, WeightsCheck


def make(pinned: dict[str, str]) -> VariantWeights:
    variants = ModelVariants(model="org/name", by_backend={"mlx": Variant("org/other", pinned)})
    return VariantWeights(WeightsCheck(lambda: {"layers.0": "ours"}), variants)


async def test_stages_of_a_variant_are_compared_with_each_other_only() -> None:
    weights = make({})
    await weights.check("one", {"layers.0": "ours"}, "org/name")
    await weights.check("two", {"layers.0": "theirs"}, "org/other")
    with pytest.raises(DifferentWeights, match="three has other weights than two: they differ in layers 0-1"):
        await weights.check("three", {"layers.0": "ours"}, "org/other")
    with pytest.raises(DifferentWeights, match="four has other weights than this server's copy"):
        await weights.check("four", {"layers.0": "theirs"}, "org/name")


async def test_digests_of_the_list_count() -> None:
    with pytest.raises(DifferentWeights, match="one has other weights"):
        await make({"layers.0": "known"}).check("one", {"layers.0": "theirs"}, "org/other")
