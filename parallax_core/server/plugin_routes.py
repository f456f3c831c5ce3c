"""Adds the HTTP routes of plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI

from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.status import ServerStatus
from parallax_core.contracts.surface import ForwardedAnswer
from parallax_core.plugins.host import PluginHost
from parallax_core.server import front_page, pages, sessions
from parallax_core.server.body_messages import BodyRequest, DirectAnswer, RefusedBody
from parallax_core.server.dialects import ServedDialects, check_router
from parallax_core.server.error_forms import ErrorForms
from parallax_core.server.errors import explain_absence
from parallax_core.server.forwarding import forward
from parallax_core.server.response import while_connected
from parallax_core.server.route_roles import RouteRoles
from parallax_core.server.served_models import ServedModels

T = TypeVar("T")

CHAT = "/v1/chat/completions"


class PluginRoutes:
    """The routes that one plugin adds; see `parallax_core.contracts.surface.HttpSurface`."""

    def __init__(self, app: FastAPI, models: ServedModels) -> None:
        self._app = app
        self._models = models
        self.routers: list[APIRouter] = []
        self.pages: list[str] = []
        forms: ErrorForms = app.state.error_forms
        self.forms = forms.copy()
        self.rewriters: dict[str, str] = dict(app.state.rewriters)

    @property
    def engine(self) -> Engine:
        """The engine of the main model; see `ServedModels.main`."""
        return self._models.main.engine

    def add_router(self, router: object) -> None:
        """Add the routes of a router.

        Raises:
            TypeError: if it is not a `fastapi.APIRouter`, or has anything but routes, whose roles would not be known.
            ValueError: if an earlier route hides one of them.
        """
        self.routers.append(
            check_router(router, [*self._app.routes, *(route for taken in self.routers for route in taken.routes)])
        )

    def add_page(self, path: str, folder: Path) -> None:
        """Serve a page; see `HttpSurface.add_page`."""
        self.add_router(pages.make_router(path, folder))
        self.pages.append(path)

    def status(self) -> ServerStatus:
        """Return the status of the server; see `HttpSurface.status`."""
        return self._models.describe()

    def write_errors(self, path: str, write: Callable[[int, str], dict[str, Any]]) -> None:
        """Set the form of errors; see `HttpSurface.write_errors`."""
        self.forms.add(path, write)

    def rewrite_bodies(self, path: str, rewrite: Ref[Callable[[bytes], bytes]]) -> None:
        """Rewrite bodies by a function of the plugin; see `HttpSurface.rewrite_bodies`."""
        dialects: ServedDialects = self._app.state.dialects
        if path not in dialects.paths:
            raise ValueError(f"{path} has no bodies to rewrite: it is not one of {', '.join(sorted(dialects.paths))}")
        if path in self.rewriters:
            raise ValueError(f"the bodies of {path} are rewritten already")
        self.rewriters[path] = rewrite.target

    async def read(self, request: Any, reader: Ref[Callable[[bytes], T]], kind: type[T]) -> T:  # noqa: ANN401
        """Read a body by a function of the plugin; see `HttpSurface.read`."""
        body = await request.body()
        if (pool := self._models.find_reader()) is None:
            return await asyncio.to_thread(reader.load(), body)
        ask = BodyRequest(kind="plugin", body=body, reader=reader.target, client=self._models.quota.identify(request))
        result = await while_connected(request, pool.read(ask))
        if isinstance(result.content, RefusedBody):
            raise result.content.as_error()
        assert isinstance(result.content, DirectAnswer)
        return msgspec.msgpack.decode(result.content.body, type=kind)

    async def forward(self, request: Any, path: str, body: bytes | None = None) -> ForwardedAnswer:  # noqa: ANN401
        """Forward a request to one of the server's own routes; see `HttpSurface.forward`."""
        return await forward(self._app, request, path, body)


def extend_app(app: FastAPI, models: ServedModels, plugins: PluginHost) -> Callable[[str], Iterator[str]]:
    """Let plugins add routes, after the server's own and behind the same middleware.

    The front page comes last, so that a plugin can bring another. Returns what `list_notes` yields for an address.
    """
    roles: RouteRoles = app.state.roles
    forms: ErrorForms = app.state.error_forms
    for _, surface in plugins.extend_server(lambda: PluginRoutes(app, models)):
        forms.take(surface.forms)
        app.state.rewriters.update(surface.rewriters)
        for router in surface.routers:
            roles.add_plugins(router)
            app.include_router(router)
        app.state.pages += surface.pages
    own = [front_page.make_router(app.state.pages)]
    if app.state.pages:
        own.append(sessions.make_router(app.state.sessions, app.state.pages))
    for router in own:
        roles.add_own(router)
        app.include_router(router)
    return partial(list_notes, app)


def list_notes(app: FastAPI, api: str) -> Iterator[str]:
    """Yield a line for each page: its address, or a link that opens a session of the operator's browser.

    A last line says what to install if nothing serves chats, which most clients ask for.
    """
    url = api.removesuffix("/v1")
    for path in app.state.pages:
        if app.state.has_keys:
            link = app.state.sessions.invite("admin", path)
            yield f"page {path}, by a link that works once, for 15 minutes: {url}{link}"
        else:
            yield f"page {url}{path}/"
    dialects: ServedDialects = app.state.dialects
    if CHAT not in dialects.paths:
        yield f"hint: {explain_absence(CHAT)}"
