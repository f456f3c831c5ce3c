"""The interface through which a plugin extends the server."""

from __future__ import annotations

from typing import Any, Protocol

from parallax_core.contracts.engine import Engine


class HttpSurface(Protocol):
    """The HTTP server, before it listens."""

    @property
    def engine(self) -> Engine:
        """The engine that answers requests; not started yet."""

    def add_router(self, router: Any) -> None:  # noqa: ANN401 -- core names no HTTP library outside its server
        """Add the routes of a ``fastapi.APIRouter``. The same API keys and limits apply as to all others.

        Raises:
            TypeError: if it is not a router.
            ValueError: if one of its routes exists already.
        """
