"""Routes of plugins."""

from __future__ import annotations

import re

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match, Route

from parallax_core.contracts.engine import Engine
from parallax_core.plugins.host import PluginHost


class PluginRoutes:
    """What one plugin adds; see `parallax_core.contracts.surface.HttpSurface`."""

    def __init__(self, app: FastAPI, engine: Engine) -> None:
        self._app = app
        self._engine = engine
        self.routers: list[APIRouter] = []

    @property
    def engine(self) -> Engine:
        """What answers requests."""
        return self._engine

    def add_router(self, router: object) -> None:
        """Take the routes of a router, unless one of them would never be reached."""
        if not isinstance(router, APIRouter):
            raise TypeError(f"{router!r} is no fastapi.APIRouter")
        others = (*self._app.routes, *(route for taken in self.routers for route in taken.routes))
        for route in router.routes:
            if isinstance(route, Route) and any(_covers(other, route) for other in others):
                raise ValueError(f"{route.path} is taken")
        self.routers.append(router)


def extend_app(app: FastAPI, engine: Engine, plugins: PluginHost) -> None:
    """Let plugins add routes; they come after ours, behind everything that every request passes."""
    for _, surface in plugins.extend_server(lambda: PluginRoutes(app, engine)):
        for router in surface.routers:
            app.include_router(router)


def _covers(taken: BaseRoute, route: Route) -> bool:
    """Whether requests for ``route`` would go to ``taken``, which comes before it."""
    sample = re.sub(r"{.*?}", "x", route.path)
    scopes = ({"type": "http", "path": sample, "method": method, "headers": []} for method in route.methods or ())
    return any(taken.matches(scope)[0] is Match.FULL for scope in scopes)
