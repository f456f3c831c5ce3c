"""Opens the API dialects of plugins, and knows what reads their bodies."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from fastapi import APIRouter
from starlette.routing import BaseRoute, Match, Route

from parallax_core.base.errors import PluginConflict
from parallax_core.contracts.dialect import Dialect, DialectSpec
from parallax_core.plugins.host import PluginHost

logger = logging.getLogger(__name__)


class ServedDialects:
    """The dialects that a server speaks, with its own routes, which no dialect may hide."""

    def __init__(self, own: APIRouter) -> None:
        self.routers: list[APIRouter] = []
        """Of the dialects; first those whose routes ask for a header, and leave other requests to later ones."""
        self.opened: list[Dialect] = []
        self.paths: set[str] = set()
        """Of routes whose bodies are read in other processes."""
        self._own = own.routes

    def add(self, spec: DialectSpec, dialect: Dialect) -> None:
        """Add a dialect; raises what `check_router` raises, and ValueError if one of its routes hides another."""
        others = [*self._own, *(route for router in self.routers for route in router.routes)]
        for router in dialect.routers:
            check_router(router, others)
            if hidden := [other for other in others for route in router.routes if _covers(route, other)]:
                raise ValueError(f"a route would hide {getattr(hidden[0], 'path', hidden[0])}")
        self.routers = sorted([*self.routers, *dialect.routers], key=_takes_any)
        self.opened.append(dialect)
        self.paths |= {body.path for body in spec.bodies.values()}

    async def run(self) -> None:
        """Run what dialects do beside the models; cancelled, it has ended once this has."""
        works = [asyncio.create_task(each.run()) for each in self.opened if each.run is not None]
        for work in works:
            work.add_done_callback(_log_failure)
        await asyncio.gather(*works, return_exceptions=True)

    async def close(self) -> None:
        """Close all dialects."""
        await asyncio.gather(*(each.close() for each in self.opened if each.close is not None))


def _log_failure(work: asyncio.Task[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.error("what a dialect does beside the models has failed", exc_info=error)


def list_bodies(plugins: PluginHost) -> dict[str, tuple[str, str]]:
    """Return the targets of the schema and of the reader of each kind of body; see `ReaderSetup.bodies`.

    Raises:
        PluginConflict: if two dialects have the same kind.
    """
    found: dict[str, tuple[str, str]] = {}
    owners: dict[str, str] = {}
    for spec in (offer.spec for offer in plugins.dialects().offers):
        for kind, body in spec.bodies.items():
            if kind in found:
                message = f"the dialects {owners[kind]!r} and {spec.name!r} both have bodies of the kind {kind!r}"
                raise PluginConflict(message, "disable the plugin of one of them")
            found[kind], owners[kind] = (body.schema.target, body.read.target), spec.name
    return found


def check_router(router: object, taken: Sequence[BaseRoute]) -> APIRouter:
    """Return the router that a plugin adds to routes that are ``taken``.

    Raises:
        TypeError: if it is not a `fastapi.APIRouter`, or has anything but routes, whose roles would not be known.
        ValueError: if one of its routes would be hidden.
    """
    if not isinstance(router, APIRouter):
        raise TypeError(f"{router!r} is not a fastapi.APIRouter")
    if not all(isinstance(route, Route) for route in router.routes):
        raise TypeError("a router has HTTP routes only: add routers that it includes by themselves")
    for route in router.routes:
        if isinstance(route, Route) and any(_covers(other, route) for other in taken):
            raise ValueError(f"{route.path} is taken")
    return router


def _takes_any(router: APIRouter) -> bool:
    """Return whether a route of a router takes requests without a header of its own."""
    return any(_covers(route, route) for route in router.routes)


def _covers(taken: BaseRoute, route: BaseRoute) -> bool:
    """Return whether requests for ``route`` would go to ``taken`` if that came first."""
    if not isinstance(route, Route):
        return False
    sample = re.sub(r"{.*?}", "x", route.path)
    scopes = ({"type": "http", "path": sample, "method": method, "headers": []} for method in route.methods or ())
    both = (taken, route)  # a route that asks for a header leaves other requests to those after it
    return any(all(each.matches(scope)[0] is Match.FULL for each in both) for scope in scopes)
