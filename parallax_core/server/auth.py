"""Checks the API key of each request against the role its route needs."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.client_id import find_joined_machine, read_key
from parallax_core.server.error_body import error_body
from parallax_core.server.route_roles import RouteRoles

OPEN_PATHS = frozenset({"/health", "/ready", "/version"})
"""The paths that need no key, for supervisors and load balancers."""
SHOWN_TO_GUESTS = ("GET", "/v1/cluster")
"""What clients of other machines see without a key, apart from the join code."""


class KeyCheck:
    """Middleware that requires a key whose role allows the route; see `read_key`.

    A missing or unknown key gets a 401; a role that does not allow the route gets a 403. Routes find the role in the
    state of the request, as ``role``. Without keys, clients of this machine are administrators, and those of machines
    that have joined are users, who may also see the nodes.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys, roles: RouteRoles) -> None:
        self._app = app
        self._roles = roles
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        needed = self._roles.find(scope["path"], scope["method"]) if scope["type"] == "http" else None
        if needed is None:
            await self._app(scope, receive, send)
            return
        is_guest = not self._keys.are_needed and bool(find_joined_machine(scope))
        role = "user" if is_guest else self._keys.find_role(read_key(scope))
        if is_guest and (scope["method"], scope["path"]) == SHOWN_TO_GUESTS:
            needed = "user"
        if role is None:
            body = error_body(
                401, "no valid API key: send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'", code="invalid_api_key"
            )
            await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        elif role not in {needed, "admin"}:
            found = "this server has none" if is_guest else f"yours has the role '{role}'"
            message = f"this needs an API key of the role '{needed}', and {found}"
            await JSONResponse(error_body(403, message, code="insufficient_permissions"), 403)(scope, receive, send)
        else:
            scope.setdefault("state", {})["role"] = role
            await self._app(scope, receive, send)
