"""Answers ``GET /`` for those who open the server in a browser: by a plain page, or a plugin's."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import fastapi
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from parallax_core.api import needs_role

PAGE = Path(__file__).with_suffix(".html")
EXAMPLE = "http://127.0.0.1:8000"
"""The address in the page, replaced by the server's own."""
PLAIN_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
"""A ``Host`` that means nothing else in HTML and in a shell."""
SCHEMES = frozenset({"http", "https"})
FIRST_PROXY = re.compile(r'(?:"[^"]*"|[^",])*')
"""What the header ``Forwarded`` has of the proxy that the client asked; RFC 7239."""
FORWARDED_PAIR = re.compile(r'(?:^|;)\s*([a-z]+)=(?:"([^"]*)"|([^";\s]*))', re.IGNORECASE)


def make_router(pages: Sequence[str]) -> fastapi.APIRouter:
    """Return the route, which leads to the first of ``pages``, if there is one.

    The plain page shows nothing that needs a key.
    """
    router = fastapi.APIRouter()
    page = PAGE.read_text(encoding="utf-8")
    headers = {
        "Content-Security-Policy": write_policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }

    @router.get("/", include_in_schema=False)
    @needs_role(None)
    async def show_front_page(http: fastapi.Request) -> Response:
        if pages:  # by a relative link, since a proxy may have put the server below a prefix
            return RedirectResponse(f".{pages[0]}/", 307, {"Cache-Control": "no-cache"})
        return HTMLResponse(page.replace(EXAMPLE, find_address(http)), headers=headers)

    return router


def find_address(http: fastapi.Request) -> str:
    """Return the address that a client has asked for, for display only: a client may say whatever it likes.

    Behind a proxy it is what ``Forwarded``, or else ``X-Forwarded-Proto`` and ``X-Forwarded-Host`` say.
    """
    first = FIRST_PROXY.match(http.headers.get("forwarded", ""))
    found = {name.lower(): quoted or plain for name, quoted, plain in FORWARDED_PAIR.findall(first[0] if first else "")}
    scheme = (found.get("proto") or _take_first(http, "x-forwarded-proto")).lower()
    host = found.get("host") or _take_first(http, "x-forwarded-host")
    if not PLAIN_HOST.fullmatch(host):
        host = http.headers.get("host", "")
    if not PLAIN_HOST.fullmatch(host):
        return EXAMPLE
    return f"{scheme if scheme in SCHEMES else http.url.scheme}://{host}"


def _take_first(http: fastapi.Request, name: str) -> str:
    """Return the first value of a header, which is of the proxy that the client asked."""
    return http.headers.get(name, "").partition(",")[0].strip()


def write_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its one style, and nothing else."""
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
