"""Opens the routes for the settings and the API keys of a server."""

from __future__ import annotations

from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions
from parallax_operate import plugin
from parallax_operate.key_routes import make_key_router
from parallax_operate.settings_route import make_settings_router


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes."""
    del models
    settings = make_settings_router(lambda: plugin.given[0] if plugin.given else None)
    return Dialect(routers=(settings, make_key_router(options)))
