"""Fetches the layers of a stage, and no others where that can be."""

from __future__ import annotations

import logging

from parallax_core.checkpoint.reader import read_config
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.source import ModelFolder
from parallax_core.contracts.stage import LayerRange
from parallax_core.models.catalog import Catalog
from parallax_core.models.stage_tensors import choose_tensors
from parallax_core.plugins.host import PluginHost

logger = logging.getLogger(__name__)


class LayerFetcher:
    """Fetches what stages on this machine are made of."""

    def __init__(self, plugins: PluginHost, catalog: Catalog) -> None:
        """Fetch models of ``catalog``, having asked the adapters of ``plugins`` what layers are made of."""
        self._plugins = plugins
        self._catalog = catalog

    def fetch(self, model: str, layers: LayerRange | None, progress: Progress) -> ModelFolder:
        """Return the folder of a model with at least the tensors of some layers.

        The whole model is fetched where its source cannot fetch parts, or no adapter knows which tensors layers are
        made of; the latter is logged.

        Args:
            model: as a user writes it.
            layers: of the stage; None: the whole model.
            progress: told how far it is.

        Raises:
            ParallaxError: with a hint, if there is no such model, or it cannot be fetched.
        """
        if layers is None or not self._catalog.can_fetch_parts(model):
            return self._catalog.fetch(model, progress)
        if found := self._catalog.find(model):
            return found
        config = read_config(self._catalog.fetch_without_weights(model, progress).path)
        tensors = choose_tensors(self._plugins, config, layers)
        if tensors is None:
            reason = f"no adapter can tell which tensors are those of layers {layers.start}-{layers.stop}"
            logger.warning("the whole model is fetched model=%s: %s", model, reason)
            return self._catalog.fetch(model, progress)
        if tensors.is_whole:
            return self._catalog.fetch(model, progress)
        return self._catalog.fetch_tensors(model, tensors.wants, progress)
