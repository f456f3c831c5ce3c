"""Answers ``GET /`` with a plain page, for those who open the address of the server in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import fastapi
from fastapi.responses import HTMLResponse

from parallax_core.contracts.surface import needs_role

PAGE = Path(__file__).with_suffix(".html")
EXAMPLE = "http://127.0.0.1:8000"
"""The address in the page, which becomes that of the server."""
PLAIN_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
"""A ``Host`` that means nothing else in HTML and in a shell."""


def make_router() -> fastapi.APIRouter:
    """Return the route. The page shows nothing that needs a key."""
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
    async def show_front_page(http: fastapi.Request) -> HTMLResponse:
        host = http.headers.get("host", "")
        address = f"{http.url.scheme}://{host}" if PLAIN_HOST.fullmatch(host) else EXAMPLE
        return HTMLResponse(page.replace(EXAMPLE, address), headers=headers)

    return router


def write_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its one style, and nothing else."""
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
