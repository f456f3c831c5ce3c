"""Adds the HTTP routes of plugins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI

from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.page import PageServer
from parallax_core.contracts.status import ServerStatus
from parallax_core.contracts.surface import Authenticator, ForwardedAnswer
from parallax_core.plugins.host import PluginHost
from parallax_core.server.body_messages import BodyRequest, DirectAnswer, RefusedBody
from parallax_core.server.dialects import ServedDialects, check_router
from parallax_core.server.error_forms import ErrorForms
from parallax_core.server.errors import explain_absence
from parallax_core.server.forwarding import forward
from parallax_core.server.response import while_connected
from parallax_core.server.route_roles import RouteRoles
from parallax_core.server.served_models import ServedModels

T = TypeVar("T")

logger = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"


class PluginRoutes:
    """The routes that one plugin adds; see `parallax_core.contracts.surface.HttpSurface`."""

    def __init__(self, app: FastAPI, models: ServedModels, page_server: PageServer | None) -> None:
        self._app = app
        self._models = models
        self._page_server = page_server
        self.routers: list[APIRouter] = []
        self.pages: list[str] = []
        self.authenticators: list[Authenticator] = []
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
        if self._page_server is None:
            raise ValueError("no plugin serves pages: install parallax-web, such as by pip install parallax-web")
        self.add_router(self._page_server.open_page(path, folder))
        self.pages.append(path)

    def authenticate_by(self, authenticator: Authenticator) -> None:
        """Know clients by a plugin; see `HttpSurface.authenticate_by`."""
        self.authenticators.append(authenticator)

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

    The routes beside pages come last, so that a plugin can bring another front page. Returns what `list_notes` yields
    for an address.
    """
    forms: ErrorForms = app.state.error_forms
    page_server = plugins.find_page_server()
    if page_server is not None:
        app.state.authenticators.append(page_server)
    for _, surface in plugins.extend_server(lambda: PluginRoutes(app, models, page_server)):
        forms.take(surface.forms)
        app.state.rewriters.update(surface.rewriters)
        _add_routers(app, surface.routers)
        app.state.pages += surface.pages
        app.state.authenticators += surface.authenticators
    if page_server is not None:
        with _surviving("the routes beside pages"):
            _add_routers(app, page_server.open_routes(app.state.pages))
    return partial(list_notes, app, page_server)


def _add_routers(app: FastAPI, routers: Iterable[APIRouter]) -> None:
    roles: RouteRoles = app.state.roles
    for router in routers:
        roles.add_plugins(router)
        app.include_router(router)


@contextmanager
def _surviving(part: str) -> Iterator[None]:
    """Log an error of the server of pages, whatever it is, and go on without a part of it."""
    try:
        yield
    except Exception:
        logger.exception("%s are left out, since what serves pages failed", part)


def list_notes(app: FastAPI, page_server: PageServer | None, api: str) -> Iterator[str]:
    """Yield the lines that say where pages are, by the address of the API.

    A last line says what to install if nothing serves chats, which most clients ask for.
    """
    if page_server is not None:
        with _surviving("the addresses of pages"):
            url, pages = api.removesuffix("/v1"), app.state.pages
            yield from page_server.list_notes(url, pages, needs_key=app.state.has_keys)
    dialects: ServedDialects = app.state.dialects
    if CHAT not in dialects.paths:
        yield f"hint: {explain_absence(CHAT)}"
