"""A server of tests whose pages parallax-web serves."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator

from parallax_core.api import HttpSurface, hookimpl
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.server.plugin_routes import extend_app
from parallax_web import plugin
from parallax_web.page_server import WebPages
from tests.unit.server.letters import Site

ListNotes = Callable[[str], Iterator[str]]


def extend(
    site: Site, page_server: WebPages | None = None, **plugins: Callable[[HttpSurface], None]
) -> tuple[dict[str, str], ListNotes]:
    """Let plugins add to a server, and return what became of each, and what lists the lines for its operator."""
    served = page_server or plugin.parallax_serve_pages()
    hooks = {name: types.SimpleNamespace(parallax_extend_server=hookimpl(add)) for name, add in plugins.items()}
    hooks["web"] = types.SimpleNamespace(parallax_serve_pages=hookimpl(lambda: served))
    host = PluginHost(
        (PluginRecord(name=name, distribution=name, version="1", module=name, state="loaded"), module)
        for name, module in hooks.items()
    )
    list_notes = extend_app(site.app, site.models, host)
    return {record.name: record.reason for record in host.records if record.name != "web"}, list_notes
