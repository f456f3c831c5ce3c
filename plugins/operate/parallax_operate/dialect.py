"""Opens the routes for the settings, the API keys and the stored models of a server."""

from __future__ import annotations

from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions
from parallax_operate import plugin
from parallax_operate.catalog import ServerCatalog
from parallax_operate.catalog_routes import make_catalog_router
from parallax_operate.key_routes import make_key_router
from parallax_operate.settings_route import make_settings_router


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes."""
    settings = make_settings_router(lambda: plugin.given[0] if plugin.given else None)
    catalog = make_catalog_router(models, ServerCatalog())
    return Dialect(routers=(settings, make_key_router(options), catalog))
