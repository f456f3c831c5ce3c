"""The route ``/openapi.json``."""

from __future__ import annotations

from typing import Any

import fastapi
from fastapi.responses import JSONResponse

from parallax_core.api import Dialect, needs_role
from parallax_core.api.dialect import ServedModels, ServerOptions, describe_server
from parallax_openapi.document import write_document


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the route; the document is written when it is first asked for."""
    del models, options
    router = fastapi.APIRouter()
    written: list[dict[str, Any]] = []

    @router.get("/openapi.json", include_in_schema=False)
    @needs_role("user")
    def describe(http: fastapi.Request) -> JSONResponse:  # on a thread: the first time is long for the event loop
        if not written:
            written.append(write_document(describe_server(http)))
        return JSONResponse(written[0])

    return Dialect(routers=(router,))
