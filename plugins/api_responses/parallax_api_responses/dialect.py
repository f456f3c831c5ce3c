"""Opens the Responses API for a server."""

from __future__ import annotations

from functools import partial

from parallax_api_responses import compact, kept_routes, route
from parallax_api_responses.keeper import make_keeper
from parallax_api_responses.restore import restore_begun
from parallax_core.api import Dialect
from parallax_core.api.dialect import ServedModels, ServerOptions


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server, with a store of its own.

    Raises:
        ParallaxError: if the store cannot be opened.
    """
    keeper = make_keeper(options, models.backlog)
    routers = tuple(each.make_router(models, keeper) for each in (route, compact, kept_routes))
    return Dialect(routers=routers, run=partial(restore_begun, models, keeper), close=keeper.close)
