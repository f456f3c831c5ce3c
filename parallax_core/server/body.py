"""The JSON of a body, in which every name counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class RepeatedField(ValueError):
    """An object in a body has a name twice: one of the values would be ignored."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the body has '{name}' twice")
        self.name = name


class JsonRequest(Request):
    """A request whose body is read once, and strictly."""

    async def json(self) -> Any:  # noqa: ANN401 -- whatever the client sent
        """Return the body's content.

        Raises:
            ValueError: if it is no JSON; RepeatedField: if a name is in an object twice.
        """
        if not hasattr(self, "_content"):
            self._content = json.loads(await self.body(), object_pairs_hook=_gather)
        return self._content


class JsonRoute(APIRoute):
    """A route that reads its body as `JsonRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def read(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return read


def _gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's fields; JSON leaves open which of two by the same name counts (RFC 8259, section 4)."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise RepeatedField(next(name for name, count in counts.items() if count > 1))
    return fields
