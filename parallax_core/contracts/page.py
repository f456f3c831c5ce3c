"""How a plugin serves the pages that other plugins add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from parallax_core.contracts.surface import Authenticator


@runtime_checkable
class PageServer(Authenticator, Protocol):
    """Serves the pages of a server, and knows the browsers that use them; see `HttpSurface.add_page`."""

    def open_page(self, path: str, folder: Path) -> Any:  # noqa: ANN401 -- core names no HTTP library outside its server
        """Return the routes of a page, as a ``fastapi.APIRouter``; they need no key.

        Raises:
            ValueError: if the path is no single segment, or the folder has no ``index.html``.
        """

    def open_routes(self, pages: Sequence[str]) -> Iterable[Any]:
        """Return further routers, such as one for ``/``, for a server whose pages are at these paths.

        They come after those of all plugins, which go first where a path is the same.
        """

    def list_notes(self, url: str, pages: Sequence[str], *, needs_key: bool) -> Iterable[str]:
        """Yield the lines that say where the pages are, for the operator who starts the server.

        Args:
            url: the address of the server, such as ``http://127.0.0.1:8000``.
            pages: the paths of its pages.
            needs_key: whether the server has API keys: then each page is opened by a link that works once.
        """
