"""Opens sessions of browsers: the cookie of a session stands for an API key of a role.

A page cannot send an API key with requests that a browser makes by itself, such as those of an ``EventSource``. A link
that works once opens a session, whose cookie counts for requests of this server's own pages alone. Browsers send
cookies to all ports of a host, so that another server there sees it, too.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import fastapi
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response

from parallax_core.api import KnownClient, RouteRole, needs_role
from parallax_core.api.dialect import error_body
from parallax_web.front_page import find_address
from parallax_web.wrong_tries import WrongTries, refuse

K = TypeVar("K")
V = TypeVar("V")

PATH = "/session"
LINK_S, SESSION_S = 600.0, 12 * 3600.0
"""Seconds for which a link, and a session, are valid."""
MOST_LINKS, MOST_SESSIONS = 64, 1024
"""The most links and sessions that are kept; the oldest goes first."""
OPERATOR = "operator"
"""The client of sessions that the link of the server's start has opened."""
READING = frozenset({"GET", "HEAD", "OPTIONS"})
SAFE_SITES = frozenset({None, "same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` with requests that change nothing; ``none``: the user has typed the address."""
UNCACHED = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


@dataclass(frozen=True, slots=True)
class Pass:
    """A link that was made, or a session that was opened."""

    role: RouteRole
    until: float
    """In seconds of the clock."""
    page: str = ""
    """Where a link leads."""
    host: str = ""
    """The ``Host`` at which a session was opened; it counts there alone."""
    key: bytes | None = None
    """The digest of the API key that made it, with which it ends; None: the operator's, who has started the server."""
    is_own: bool = False
    """Whether it is of who has that key, or of the operator, and not of somebody who got a link."""


class Sessions:
    """The sessions of a server, and the links that open them. Both are kept as digests, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read ``clock``, in seconds."""
        self._clock = clock
        self._links: OrderedDict[bytes, Pass] = OrderedDict()
        self._open: OrderedDict[bytes, Pass] = OrderedDict()
        self.wrong = WrongTries(clock)
        """Wrong codes."""

    def invite(self, role: RouteRole, page: str, key: bytes | None = None, *, is_own: bool = False) -> str:
        """Return the path of a link that opens one session of a role, which ends with ``key``, and leads to a page."""
        code = secrets.token_urlsafe(32)
        made = Pass(role, self._clock() + LINK_S, page, key=key, is_own=is_own)
        _keep(self._links, _digest(code), made, MOST_LINKS)
        return f"{PATH}?code={code}"

    def open(self, role: RouteRole, host: str, key: bytes | None, *, is_own: bool) -> str:
        """Return the token of a new session, which counts at a ``Host``; see `Pass`."""
        token = secrets.token_urlsafe(32)
        opened = Pass(role, self._clock() + SESSION_S, host=host, key=key, is_own=is_own)
        _keep(self._open, _digest(token), opened, MOST_SESSIONS)
        return token

    def redeem(self, code: str, address: str, host: str = "") -> tuple[str, Pass] | None:
        """Return the token of a new session and its link, or None for a code that is wrong, old or used."""
        link = self._links.pop(_digest(code), None)
        if link is None or link.until <= self._clock():
            self.wrong.note(address)
            return None
        return self.open(link.role, host, link.key, is_own=link.is_own), link

    def find(self, scope: Mapping[str, Any]) -> tuple[bytes, Pass] | None:
        """Return the session of a request with its id, or None; requests of other origins have no session."""
        if not self._open or not is_own_request(scope):
            return None
        for token in read_cookies(scope):
            found = self._open.get(key := _digest(token))
            if found and found.until > self._clock() and found.host == read_headers(scope).get("host", ""):
                return key, found
        return None

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        """Return the browser that sent a request; see `Authenticator.authenticate`."""
        found = self.find(scope)
        if found is None:
            return None
        token, session = found
        # All browsers of a key are one client, so that nobody gets its limits twice by a second session. So is the
        # operator, also after a restart, so that what the server has kept is found again.
        own = f"key {session.key.hex()}" if session.key else OPERATOR
        return KnownClient(own if session.is_own else token.hex(), session.role, session.key)

    def find_key(self, scope: Mapping[str, Any]) -> bytes | None:
        """Return the digest of the API key of a request, or of that of its session."""
        if key := read_key(scope):
            return _digest(key)
        found = self.find(scope)
        return None if found is None else found[1].key

    def find_left_s(self, session: Pass) -> float:
        """Return the seconds for which a session is still valid."""
        return max(0.0, session.until - self._clock())

    def close(self, scope: Mapping[str, Any]) -> None:
        """Close all sessions whose cookies a request has."""
        for token in read_cookies(scope):
            self._open.pop(_digest(token), None)


def _digest(secret: str) -> bytes:
    """Return what is kept of a code or a token, so that nothing keeps the secret itself."""
    return hashlib.sha256(secret.encode(errors="surrogateescape")).digest()


def read_headers(scope: Mapping[str, Any]) -> Headers:
    """Return the headers of a request."""
    return Headers(raw=scope["headers"])


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


def read_key(scope: Mapping[str, Any]) -> str:
    """Return the API key that a request has, which the server has checked; empty: none."""
    headers = read_headers(scope)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()


def is_own_request(scope: Mapping[str, Any]) -> bool:
    """Return whether a request comes from a page of this server, or from no page if it only reads.

    A page of another port of the same host is of another origin, but of the same site: ``SameSite`` lets it through.
    """
    headers = read_headers(scope)
    site = headers.get("sec-fetch-site")
    if scope["method"] in READING:
        return site in SAFE_SITES
    if "origin" not in headers:
        return site == "same-origin"
    return headers["origin"] in {f"{scheme}://{headers.get('host')}" for scheme in ("http", "https")}


def name_cookie(scope: Mapping[str, Any]) -> str:
    """Return the name of the cookie, which tells apart the servers of a host."""
    port = (scope.get("server") or ("", 0))[1]
    return f"{'__Host-' if scope['scheme'] == 'https' else ''}parallax-{port}"


def read_cookies(scope: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of the cookie; another server of the host may have set one of that name."""
    wanted = name_cookie(scope)
    for header in read_headers(scope).getlist("cookie"):
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            if name == wanted:
                yield value


def make_router(sessions: Sessions) -> fastapi.APIRouter:
    """Return the routes by which browsers open sessions by links, look at them and close them."""
    router = fastapi.APIRouter(include_in_schema=False)

    @router.get(PATH)
    @needs_role(None)
    async def open_session(http: fastapi.Request, code: str = "") -> Response:
        """Open a session by the code of a link, or say which one there is."""
        return _open(sessions, http, code) if code else _show(sessions, http)

    @router.head(PATH)
    @needs_role(None)
    async def look_at_link() -> Response:
        """Leave the link as it is: whatever only looks at links must not use it up."""
        return Response(status_code=204, headers=UNCACHED)

    @router.delete(PATH)
    @needs_role(None)
    async def close_session(http: fastapi.Request) -> Response:
        """Close the session of the browser."""
        if not is_own_request(http.scope):
            return JSONResponse(error_body(403, "only a page of this server closes its session", code="origin"), 403)
        sessions.close(http.scope)
        answer = Response(status_code=204, headers=UNCACHED)
        _set_cookie(answer, http.scope, "", 0)
        return answer

    return router


def make_key_router(sessions: Sessions, pages: Collection[str]) -> fastapi.APIRouter:
    """Return the routes by which those who have a key open sessions: their own, or by links to ``pages``."""
    router = fastapi.APIRouter(include_in_schema=False)

    @router.post(PATH)
    @needs_role("user")
    async def sign_in(http: fastapi.Request) -> Response:
        """Open a session by an API key, which ends with it."""
        if not is_own_request(http.scope):
            return JSONResponse(error_body(403, "only a page of this server opens a session", code="origin"), 403)
        if not (key := read_key(http.scope)):
            return JSONResponse(error_body(400, "send 'Authorization: Bearer KEY'"), 400, UNCACHED)
        sessions.close(http.scope)
        role = http.state.role
        token = sessions.open(role, http.headers.get("host", ""), _digest(key), is_own=True)
        answer = JSONResponse({"role": role, "expires_in": int(SESSION_S)}, headers=UNCACHED)
        _set_cookie(answer, http.scope, token, int(SESSION_S))
        return answer

    @router.post(f"{PATH}/links")
    @needs_role("admin")
    async def make_link(
        http: fastapi.Request, page: Annotated[str, fastapi.Query(max_length=64)], role: RouteRole = "user"
    ) -> Response:
        """Return a link that opens a session of a role once, and leads to a page."""
        if page not in pages:
            message = f"there is no page at {page!r}: it is one of {', '.join(sorted(pages))}"
            return JSONResponse(error_body(400, message, param="page"), 400)
        url = find_address(http) + sessions.invite(role, page, sessions.find_key(http.scope))
        return JSONResponse({"url": url, "role": role, "expires_in": int(LINK_S)}, headers=UNCACHED)

    return router


def _open(sessions: Sessions, http: fastapi.Request, code: str) -> Response:
    address = http.client.host if http.client else ""
    if wait_s := sessions.wrong.find_wait_s(address):
        return refuse("too many wrong links", wait_s)
    if (opened := sessions.redeem(code, address, http.headers.get("host", ""))) is None:
        message = "this link was used, is too old, or was never made: an administrator makes another"
        return JSONResponse(error_body(403, message, code="invalid_link"), 403, UNCACHED)
    sessions.close(http.scope)  # what the browser had before
    token, link = opened
    answer = RedirectResponse(f".{link.page}/", 303, UNCACHED)
    _set_cookie(answer, http.scope, token, int(SESSION_S))
    return answer


def _show(sessions: Sessions, http: fastapi.Request) -> Response:
    found = sessions.find(http.scope)
    role, left_s = (None, 0.0) if found is None else (found[1].role, sessions.find_left_s(found[1]))
    is_read_only = bool(getattr(http.state, "is_read_only", False))
    return JSONResponse({"role": role, "expires_in": int(left_s), "read_only": is_read_only}, headers=UNCACHED)


def _set_cookie(answer: Response, scope: Mapping[str, Any], token: str, age_s: int) -> None:
    answer.set_cookie(
        name_cookie(scope), token, age_s, path="/", secure=scope["scheme"] == "https", httponly=True, samesite="strict"
    )
