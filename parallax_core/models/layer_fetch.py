"""Fetches the layers of a stage, without the rest of the model where possible."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from parallax_core.checkpoint.reader import read_config
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import LayerRange
from parallax_core.models.catalog import Catalog
from parallax_core.models.stage_tensors import choose_tensors
from parallax_core.plugins.host import PluginHost

Check = Callable[[Path], None]
logger = logging.getLogger(__name__)


class LayerFetcher:
    """Fetches the tensors of stages on this machine."""

    def __init__(self, plugins: PluginHost, catalog: Catalog) -> None:
        """Fetch models of ``catalog``; the adapters of ``plugins`` know the tensors of each layer."""
        self._plugins = plugins
        self._catalog = catalog

    def fetch(
        self, model: str, layers: LayerRange | None, progress: Progress, check: Check = lambda _: None
    ) -> ModelFolder:
        """Return the folder of a model with at least the tensors of some layers.

        It fetches the whole model if its source cannot fetch parts, or if no adapter knows the tensors of its layers;
        it logs the latter.

        Args:
            model: the name as the user writes it.
            layers: of the stage; None: the whole model.
            progress: receives progress reports.
            check: called with the folder before weights are fetched, if they can be fetched in parts.

        Raises:
            ParallaxError: if there is no such model, or it cannot be fetched; with a hint; and what ``check`` raises.
        """
        if not self._catalog.can_fetch_parts(model):
            return self._catalog.fetch(model, progress)
        if found := self._catalog.find(model):
            return found
        folder = self._catalog.fetch_without_weights(model, progress).path
        check(folder)
        if layers is None:
            return self._catalog.fetch(model, progress)
        tensors = choose_tensors(self._plugins, read_config(folder), layers)
        if tensors is None:
            reason = f"no adapter knows the tensors of layers {layers.start}-{layers.stop}"
            logger.warning("the whole model is fetched model=%s: %s", model, reason)
            return self._catalog.fetch(model, progress)
        if tensors.is_whole:
            return self._catalog.fetch(model, progress)
        return self._catalog.fetch_tensors(model, tensors.wants, progress)
