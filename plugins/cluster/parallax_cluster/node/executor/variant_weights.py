"""Compares the weights of stages with those of stages that have loaded the same variant of a model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from parallax_cluster.model_variants import ModelVariants
from parallax_core.node.executor.weights_check import WeightsCheck


class VariantWeights(WeightsCheck):
    """A set of digests for each variant."""

    def __init__(self, own: WeightsCheck, variants: ModelVariants) -> None:
        """Compare stages of the named model by ``own``, and those of others with what is known of ``variants``."""
        super().__init__()
        checks = {each.model: WeightsCheck(partial(variants.read, each)) for each in variants.by_backend.values()}
        self._checks = {**checks, variants.model: own}
        self._named = variants.model

    def begin(self) -> None:
        """Start to read the server's copies in the background."""
        for each in self._checks.values():
            each.begin()

    async def check(self, name: str, parts: Mapping[str, str], model: str = "") -> None:
        """Check the weights of a stage; see `WeightsCheck.check`."""
        await self._checks.get(model, self._checks[self._named]).check(name, parts, model)
