"""Opens the dialect of a server's LoRA adapters."""

from __future__ import annotations

import asyncio
import logging

from parallax_adapters.metrics import AdapterMetrics
from parallax_adapters.registry import AdapterRegistry
from parallax_adapters.routes import make_router
from parallax_adapters.settings import CHOSEN
from parallax_adapters.sharing import SHARING
from parallax_adapters.store import AdapterStore
from parallax_core.api import Dialect, ParallaxError
from parallax_core.api.dialect import ServedModels, ServerOptions

logger = logging.getLogger(__name__)


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect, and serve the adapters of ``--adapter``.

    Raises:
        ParallaxError: if one of these cannot be used.
    """
    registry = AdapterRegistry(models, CHOSEN.settings, AdapterStore(), SHARING)
    for text in options.adapters:
        name, _, path = text.partition("=")
        if not path:
            raise ParallaxError(f"--adapter {text} is not NAME=PATH", "such as --adapter mine=adapters/mine")
        registry.add_untried(name, path)
    models.collectors.append(AdapterMetrics(registry))

    async def run() -> None:
        await models.started.wait()
        for adapter in list(registry.loaded.values()):
            await _try_out(registry, adapter.name)
        await asyncio.Event().wait()

    return Dialect(routers=(make_router(registry),), run=run, close=registry.close)


async def _try_out(registry: AdapterRegistry, name: str) -> None:
    """Try an adapter of the start; one that the model cannot use is not served."""
    try:
        await registry.try_out(registry.loaded[name])
    except ParallaxError as error:
        logger.error("adapter %s is not served: %s", name, error.message)  # noqa: TRY400 -- a traceback says no more
        await registry.unload(name)
