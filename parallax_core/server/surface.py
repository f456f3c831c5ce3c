"""Routes of plugins."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Route

from parallax_core.contracts.engine import Engine
from parallax_core.plugins.host import PluginHost


class Surface:
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
        for route in _list_routes(router.routes):
            others = (*self._app.routes, *(each for taken in self.routers for each in taken.routes))
            if other := next((each for each in _list_routes(others) if _covers(each, route)), None):
                raise ValueError(f"{route.path} is taken by {other.path}")
        self.routers.append(router)


def extend_app(app: FastAPI, engine: Engine, plugins: PluginHost) -> None:
    """Let plugins add routes; they come after ours, behind everything that every request passes."""
    for _, surface in plugins.extend_server(lambda: Surface(app, engine)):
        for router in surface.routers:
            app.include_router(router)


def _list_routes(routes: Iterable[BaseRoute]) -> list[Route]:
    return [route for route in routes if isinstance(route, Route)]


def _covers(taken: Route, route: Route) -> bool:
    """Whether requests for ``route`` would go to ``taken``."""
    sample = re.sub(r"{.*?}", "x", route.path)
    return bool(taken.path_regex.match(sample)) and bool((taken.methods or set()) & (route.methods or set()))
