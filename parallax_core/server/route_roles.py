"""Knows the role that each route needs: routes state it, by `needs_role`."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter
from starlette.routing import Route

from parallax_core.contracts.surface import ROLE, SHOWS_GUESTS, RouteRole

STRICTEST: tuple[RouteRole | None, ...] = ("admin", "metrics", "user", None)
READING = frozenset({"GET", "HEAD"})


class RouteRoles:
    """The roles of all routes of the server."""

    def __init__(self) -> None:
        self._exact: dict[str, list[tuple[frozenset[str], RouteRole | None]]] = {}
        self._patterns: list[tuple[Route, RouteRole | None]] = []
        self._areas: dict[str, set[RouteRole | None]] = {}
        self._shown: set[str] = set()

    def add_own(self, router: APIRouter) -> None:
        """Add the server's own routes; those that state none are the users'."""
        for route in _list_routes(router):
            self._add(route, getattr(route.endpoint, ROLE, "user"))

    def add_plugins(self, router: APIRouter) -> None:
        """Add the routes of a plugin; those that state none are the administrators', apart from reading."""
        for route in _list_routes(router):
            is_reading = (route.methods or set()) <= READING
            self._add(route, getattr(route.endpoint, ROLE, "user" if is_reading else "admin"))

    def find(self, path: str, method: str | None = None) -> RouteRole | None:
        """Return the role that a request needs; None: no key.

        A path without a route is the administrators' if all its neighbours are, else the users'. Of several routes at
        the path the strictest holds, and so it does for a method that none of them has.
        """
        found = [*self._exact.get(path, ())]
        found += [
            (frozenset(route.methods or ()), role) for route, role in self._patterns if route.path_regex.match(path)
        ]
        of_method = [role for methods, role in found if method in methods]
        roles = of_method or [role for _, role in found]
        if not roles:
            return "admin" if self._areas.get(_find_area(path)) == {"admin"} else "user"
        return min(roles, key=STRICTEST.index)

    def shows_guests(self, path: str) -> bool:
        """Return whether clients of machines that have joined may read what is at a path."""
        return path in self._shown

    def _add(self, route: Route, role: RouteRole | None) -> None:
        if getattr(route.endpoint, SHOWS_GUESTS, False):
            self._shown.add(route.path)
        self._areas.setdefault(_find_area(route.path), set()).add(role)
        if "{" in route.path:
            self._patterns.append((route, role))
        else:
            self._exact.setdefault(route.path, []).append((frozenset(route.methods or ()), role))


def _find_area(path: str) -> str:
    """Return the first two parts of a path, such as ``/v1/cluster``."""
    return "/".join(path.split("/")[:3])


def _list_routes(router: APIRouter) -> Iterable[Route]:
    return (route for route in router.routes if isinstance(route, Route))
