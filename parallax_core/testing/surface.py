"""The kit for extensions of the HTTP server: the roles of their routes, and what their pages hold.

Subclass it in a test module under a name that begins with ``Test``, and give `extend`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import urljoin

from parallax_core.config.config import Config
from parallax_core.contracts.page import PageServer
from parallax_core.contracts.surface import ROLE, HttpSurface
from parallax_core.hookspecs import hookimpl
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.app import make_app
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.plugin_routes import PluginRoutes, extend_app
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.asgi import AsgiAnswer, send_request
from parallax_core.testing.promise import broken

ADDS = "The HTTP server, before it listens"
ROLES = "Each states the role that it needs by `needs_role`"
FOLDER = "has ``index.html``; what begins with a dot is not served"
ALLOWED = "allows scripts, styles, images, fonts and requests of this server alone, and nothing inline"
FOUND = 200
OTHER = "application/octet-stream"
"""The content type of a file whose type the server does not know."""
READING = frozenset({"GET", "HEAD"})
INLINE = re.compile(
    r"<script(?![^>]*\ssrc=)[^>]*>|<style\b|<[a-z][^>]*\s(?:on[a-z]+|style)=|javascript:", re.IGNORECASE
)
LINKED = re.compile(r"<(?:script|link|img)\b[^>]*\s(?:src|href)=[\"']?([^\"'\s>]+)", re.IGNORECASE)
FOREIGN = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


class SurfaceConformance:
    """Tests for what a plugin adds by ``parallax_extend_server``, before any model is loaded."""

    def extend(self, server: HttpSurface) -> None:
        """Add to the server, as the hook of the plugin does."""
        raise NotImplementedError

    def make_app(self) -> Any:  # noqa: ANN401 -- core names no HTTP library outside its server
        """Return a server that was extended."""
        record = PluginRecord(name="kit", distribution="kit", version="0", module="kit", state="loaded")
        extend = hookimpl(lambda server: self.extend(server))  # noqa: PLW0108 -- a method takes no mark
        serve = hookimpl(lambda: find_page_server())  # noqa: PLW0108 -- what is cached takes no mark
        hooks = SimpleNamespace(parallax_extend_server=extend, parallax_serve_pages=serve)
        plugins = PluginHost([(record, hooks)])
        app, models = make_bare_app()
        extend_app(app, models, plugins)
        [found] = plugins.records
        assert found.state == "loaded", broken(f"it cannot extend the server: {found.reason}", ADDS)
        return app

    def list_added(self) -> tuple[list[Any], list[str]]:
        """Return the routes that are added, and the paths of pages."""
        self.make_app()
        surface = PluginRoutes(*make_bare_app(), find_page_server())
        self.extend(surface)
        routes = [route for router in surface.routers for route in router.routes]
        return routes, surface.pages

    def list_pages(self) -> Iterator[tuple[Any, str, str]]:
        """Yield each page, with the server and its text."""
        app = self.make_app()
        for path in app.state.pages:
            answer = get(app, f"{path}/")
            assert answer.status == FOUND, broken(f"{path}/ is answered with {answer.status}", FOLDER)
            yield app, f"{path}/", answer.body.decode()

    def test_server_is_extended(self) -> None:
        """It adds routes or pages."""
        assert any(self.list_added()), broken("it adds nothing", ADDS)

    def test_routes_that_change_something_state_their_roles(self) -> None:
        """Each has a role of its own, so that no one without a key changes anything."""
        for route in self.list_added()[0]:
            if not (route.methods or set()) <= READING:
                stated = getattr(route.endpoint, ROLE, "")
                assert stated != "", broken(f"{route.path} states no role", ROLES)
                assert stated is not None, broken(f"{route.path} changes something without a key", ROLES)

    def test_pages_have_nothing_that_browsers_would_refuse(self) -> None:
        """No script and no style within them, and nothing of other servers."""
        for _, path, text in self.list_pages():
            inline = [found[0] for found in INLINE.finditer(text)]
            assert not inline, broken(f"{path} has {', '.join(inline)} in it", ALLOWED)
            foreign = [each for each in LINKED.findall(text) if FOREIGN.match(each)]
            assert not foreign, broken(f"{path} loads {', '.join(foreign)}", ALLOWED)

    def test_pages_find_what_they_load(self) -> None:
        """Each script, style and image is there, and has a type that browsers accept."""
        for app, path, text in self.list_pages():
            for link in LINKED.findall(text):
                if not FOREIGN.match(link) and not link.startswith("data:"):
                    answer = get(app, urljoin(path, link))
                    is_there, is_known = answer.status == FOUND, answer.kind != OTHER
                    assert is_there, broken(f"{path} loads {link}, which does not exist", FOLDER)
                    assert is_known, broken(f"{path} loads {link}, whose type browsers do not know", ALLOWED)


def make_bare_app(options: ServerOptions | None = None) -> tuple[Any, ServedModels]:
    """Return a server without models and plugins."""
    models = ServedModels()
    return make_app(models, options or ServerOptions(), Drain(), PluginHost(())), models


@cache
def find_page_server() -> PageServer | None:
    """Return what serves pages in this environment: the kit loads pages as its servers do."""
    return PluginHost.discover(Config()).find_page_server()


def get(app: Any, path: str) -> AsgiAnswer:  # noqa: ANN401 -- as above
    """Return the answer to a GET."""
    return asyncio.run(send_request(app, "GET", path))
