"""Opens the routes for the settings, the API keys and the stored models of a server."""

from __future__ import annotations

from functools import partial

from fastapi import Request

from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions
from parallax_operate import plugin
from parallax_operate.catalog import ServerCatalog
from parallax_operate.catalog_routes import make_catalog_router
from parallax_operate.download_routes import make_download_router
from parallax_operate.downloads import Downloads
from parallax_operate.key_limits import KeyLimiting, LimitTable, limit_tokens
from parallax_operate.key_routes import make_key_router
from parallax_operate.settings_route import make_settings_router


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the routes, and limit the keys of the server's file."""
    settings = make_settings_router(lambda: plugin.given[0] if plugin.given else None)
    catalog = ServerCatalog()
    downloads = Downloads(catalog)
    # Downloads come first: the name of a model may be any path below the catalog's.
    models_here = (make_download_router(downloads), make_catalog_router(models, catalog))
    routers = (settings, make_key_router(options), *models_here)
    if (file := options.keys.file) is None:
        return Dialect(routers=routers, close=downloads.close)
    table, quota = LimitTable(file), models.quota
    quota.find_most = limit_tokens(table, quota.find_most)
    limited = partial(KeyLimiting, table=table, identify=lambda scope: quota.identify(Request(scope)))
    return Dialect(routers=routers, close=downloads.close, body_middleware=limited)
