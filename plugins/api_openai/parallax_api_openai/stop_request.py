"""The route ``POST /v1/stop_request``."""

from __future__ import annotations

import fastapi

from parallax_api_openai.stop_models import StopReply, StopRequest
from parallax_core.api import Dialect, InvalidRequest, UnknownName, needs_role
from parallax_core.api.dialect import (
    ServedModels,
    ServerOptions,
    describe_answer,
    describe_body,
    describe_errors,
    read_body,
    respond_with,
)

MAX_BYTES = 4096
"""The largest body: it is read on the event loop."""


def open_dialect(models: ServedModels, options: ServerOptions) -> Dialect:
    """Return the dialect for a server."""
    del options
    return Dialect(routers=(make_router(models),))


def make_router(models: ServedModels) -> fastapi.APIRouter:
    """Return the route for ``models``."""
    router = fastapi.APIRouter()
    errors = describe_errors(400, 401, 403, 404, 408, 413, 429)

    @router.post(
        "/v1/stop_request", responses=describe_answer(StopReply) | errors, openapi_extra=describe_body(StopRequest)
    )
    @needs_role("user")
    async def stop_request(http: fastapi.Request) -> fastapi.Response:
        """End a running request of the same key; its answers end where they are, with ``finish_reason`` ``stop``."""
        data = await http.body()
        if len(data) > MAX_BYTES:
            message = f"the body has {len(data)} bytes, and may have {MAX_BYTES}"
            raise InvalidRequest(message)
        name = read_body(data, StopRequest).id
        client = models.quota.identify(http)
        flows = [flow for service in models.services for flow in service.running.find(client, name)]
        if not flows:
            raise UnknownName("no running request of yours has this id")
        for flow in flows:
            flow.stop()
        return respond_with(StopReply(name))

    return router
