"""Serves pages of plugins: their files, the front page, and the sessions of browsers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from parallax_core.api import KnownClient
from parallax_web import front_page, page_files, sessions


class WebPages:
    """The pages of one server, as a `PageServer`."""

    def __init__(self, opened: sessions.Sessions | None = None) -> None:
        """Keep sessions in ``opened``."""
        self._sessions = opened or sessions.Sessions()

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        """Return the browser that sent a request; see `Authenticator.authenticate`."""
        return self._sessions.authenticate(scope)

    def open_page(self, path: str, folder: Path) -> APIRouter:
        """Return the routes of a page; see `PageServer.open_page`."""
        return page_files.make_router(path, folder)

    def open_routes(self, pages: Sequence[str]) -> Iterator[APIRouter]:
        """Yield the front page, and, if there are pages, the routes of sessions."""
        yield front_page.make_router(pages)
        if pages:
            yield sessions.make_router(self._sessions)
            yield sessions.make_key_router(self._sessions, pages)

    def list_notes(self, url: str, pages: Sequence[str], *, needs_key: bool) -> Iterator[str]:
        """Yield a line for each page: its address, or a link that opens a session of the operator's browser."""
        for path in pages:
            if needs_key:
                link = self._sessions.invite("admin", path, is_own=True)
                yield f"page {path}, by a link that works once, for 10 minutes: {url}{link}"
            else:
                yield f"page {url}{path}/"
