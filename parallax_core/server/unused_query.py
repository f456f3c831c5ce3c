"""Notes query parameters without effect, so that the response names them; see `IgnoredFieldsHeader`.

They are not refused: clients add some to every request, such as the versions of an API or their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import Request
from fastapi.dependencies.models import Dependant

from parallax_core.server.unknown_fields import LEFT_OUT


async def note_unused(http: Request) -> None:
    """Note the parameters that the route of a GET request does not have."""
    if http.method != "GET" or not http.query_params:
        return
    leave_out(http, {*http.query_params}.difference(_list_parameters(http.scope["route"].dependant)))


def _list_parameters(part: Dependant) -> Iterator[str]:
    """Yield the parameters of a route, or of what it depends on."""
    yield from (field.alias for field in part.query_params)
    for each in part.dependencies:
        yield from _list_parameters(each)


def leave_out(http: Request, names: set[str]) -> None:
    """Note parameters that have no effect, if they are in the query."""
    LEFT_OUT.get({}).update(dict.fromkeys(name for name in http.query_params if name in names))
