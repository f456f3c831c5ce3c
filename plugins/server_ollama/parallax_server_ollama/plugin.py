"""Adds the routes of Ollama's API to the server."""

from __future__ import annotations

from parallax_core.api import HttpSurface, hookimpl


@hookimpl
def parallax_extend_server(server: HttpSurface) -> None:
    """Add the routes."""
    from parallax_server_ollama.routes import make_router

    server.add_router(make_router(server))
