"""Adds the routes and request fields of GradientHQ's Parallax to the server."""

from __future__ import annotations

from parallax_core.api import HttpSurface, hookimpl


@hookimpl
def parallax_extend_server(server: HttpSurface) -> None:
    """Add the routes, and have chat requests rewritten."""
    from parallax_server_gradient.routes import CHAT, REWRITE, make_router

    server.add_router(make_router(server))
    server.rewrite_bodies(CHAT, REWRITE)
