"""What a plugin may add to the server."""

from __future__ import annotations

from typing import Any, Protocol

from parallax_core.contracts.engine import Engine


class HttpSurface(Protocol):
    """The HTTP server, before it listens."""

    @property
    def engine(self) -> Engine:
        """What answers requests; not started yet."""

    def add_router(self, router: Any) -> None:  # noqa: ANN401 -- core names no HTTP library outside its server
        """Add the routes of a ``fastapi.APIRouter``. They stand behind the same API keys and limits as all others.

        Raises:
            TypeError: if it is no router.
            ValueError: if a route in it is taken.
        """
