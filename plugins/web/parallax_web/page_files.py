"""Serves the files of pages that plugins bring, each below a path of its own."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import fastapi
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from parallax_core.api import needs_role

PAGE_PATH = re.compile(r"/[a-z0-9][a-z0-9-]*")
RESERVED = frozenset({"/v1", "/session"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages: what this server has, and nothing inline."""
HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)
"""Browsers ask each time whether a file has changed, and get a 304 if not."""
TYPES = {
    ".css": "text/css",
    ".gif": "image/gif",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
"""The content types of files, whatever this machine knows of them."""
OTHER = "application/octet-stream"


class PageFiles(StaticFiles):
    """The files of a page. What begins with a dot, and links that lead elsewhere, are not served."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Return a file with its type, or a 304 if the client has it."""
        kind = TYPES.get(PurePosixPath(full_path).suffix.lower(), OTHER)
        response = FileResponse(full_path, status_code, dict(HEADERS), media_type=kind, stat_result=stat_result)
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response

    async def find(self, name: str, scope: Scope) -> Response:
        """Return the answer for a file.

        Raises:
            HTTPException: with status 404, if there is no such file, or it is not for clients.
        """
        if not any(part.startswith(".") for part in name.split("/")):
            try:
                return await self.get_response(name, scope)
            except (HTTPException, OSError):
                pass  # such as one that this process may not read
        raise HTTPException(404, f"{scope['path']} does not exist")


def make_router(path: str, folder: Path) -> fastapi.APIRouter:
    """Return the routes of a page at ``path``.

    Raises:
        ValueError: if the path is no single segment, or the folder has no ``index.html``.
    """
    if not PAGE_PATH.fullmatch(path) or path in RESERVED:
        raise ValueError(f"{path!r} is no path for a page: write one segment, such as '/chat'")
    if not (folder / "index.html").is_file():
        raise ValueError(f"{folder} has no index.html")
    files, router = PageFiles(directory=folder), fastapi.APIRouter()

    @needs_role(None)
    async def show_page(http: fastapi.Request) -> Response:
        if not http.scope.get("raw_path", b"").endswith(b"/"):  # so that the page's own links are relative to it
            return RedirectResponse(f".{path}/", 308)  # relative: a proxy may serve it below a prefix
        return await files.find("index.html", http.scope)

    @needs_role(None)
    async def show_file(http: fastapi.Request, name: str) -> Response:
        return await files.find(name or "index.html", http.scope)

    for place, answer in ((path, show_page), (f"{path}/{{name:path}}", show_file)):
        router.add_api_route(place, answer, methods=["GET", "HEAD"], include_in_schema=False)
    return router
