"""Serves the page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parallax_core.api import DialectSpec, HttpSurface, PageServer, Ref, Settings, SettingsSpec, hookimpl
from parallax_web.settings import WebSettings

PATH = "/app"
FOLDER = Path(__file__).with_name("page")
"""The built page; ``make web`` makes it."""

chosen = WebSettings()


@hookimpl
def parallax_register_settings() -> Iterable[SettingsSpec]:
    """Declare the section ``[web]``."""
    return [
        SettingsSpec(name="web", summary="the page in the browser", schema=Ref("parallax_web.settings:WebSettings"))
    ]


@hookimpl
def parallax_configure(config: Settings) -> None:
    """Keep the settings for the server."""
    global chosen  # noqa: PLW0603 -- hooks are functions of a module
    chosen = config.section(WebSettings)


@hookimpl
def parallax_register_dialects() -> Iterable[DialectSpec]:
    """Offer the routes of conversations that the server keeps, and the limit of wrong tries to sign in."""
    return [
        DialectSpec(
            name="chats",
            summary="conversations that the server keeps, if a file is set for them",
            open=Ref("parallax_web.chat_routes:open_dialect"),
        ),
        DialectSpec(
            name="sign_in",
            summary="how often an address may try to sign in by a wrong API key",
            open=Ref("parallax_web.wrong_tries:open_dialect"),
        ),
    ]


@hookimpl
def parallax_serve_pages() -> PageServer:
    """Serve the pages of plugins, the front page, and the sessions of browsers."""
    from parallax_web.page_server import WebPages

    return WebPages()


@hookimpl
def parallax_extend_server(server: HttpSurface) -> None:
    """Add the page."""
    if chosen.enabled:
        server.add_page(PATH, FOLDER)
