"""The HTTP application."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse

from parallax_core.server import chat, cluster, completions, metrics, tokens
from parallax_core.server.access import REQUEST_ID, AccessLog
from parallax_core.server.auth import KeyCheck
from parallax_core.server.description import describe_app, describe_errors, describe_health
from parallax_core.server.edge import Edge
from parallax_core.server.errors import add_handlers
from parallax_core.server.gate import CLOSING, Gate, Gatekeeper
from parallax_core.server.host import HostCheck
from parallax_core.server.lenience import HEADER, Lenience
from parallax_core.server.limit import BodyLimit
from parallax_core.server.origin import OriginCheck
from parallax_core.server.patience import Patience
from parallax_core.server.rate import RateLimit
from parallax_core.server.reply import HealthReply, ModelReply, ModelsReply, VersionReply
from parallax_core.server.served import Served


def make_app(served: Served, edge: Edge | None = None, gate: Gate | None = None) -> FastAPI:
    """Return the application for one model, behind its edge."""
    edge, gate = edge or Edge(), gate or Gate()
    # Traces are ours to send (see `tracing`): those of FastAPI hold what clients send, wherever an error quotes it.
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(title="Parallax", docs_url=None, redoc_url=None, redirect_slashes=False, telemetry=silent)
    add_handlers(app)
    describe_app(app, has_keys=edge.keys.are_needed)
    app.include_router(_make_basics(served, gate))
    app.include_router(metrics.make_router(served.meter))
    for routes in (chat, completions, tokens, cluster):
        app.include_router(routes.make_router(served))
    _add_edge(app, edge, gate)
    app.add_middleware(AccessLog, count_error=served.meter.count_error, logs_bodies=edge.logs_bodies)
    return app


def _add_edge(app: FastAPI, edge: Edge, gate: Gate) -> None:
    """Add what may refuse a request, from the routes outwards."""
    if edge.is_lenient:
        app.add_middleware(Lenience)
    app.add_middleware(BodyLimit, limit=edge.max_body_bytes)
    app.add_middleware(Patience, gate=gate, limit_s=edge.request_s)
    app.add_middleware(Gatekeeper, gate=gate)
    if edge.max_concurrent or edge.max_per_minute:
        app.add_middleware(RateLimit, edge=edge)
    app.add_middleware(KeyCheck, keys=edge.keys)
    app.add_middleware(OriginCheck, origins=edge.cors_origins)
    if edge.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(edge.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", REQUEST_ID],
            expose_headers=[REQUEST_ID, HEADER, "Retry-After"],
        )
    if edge.hosts:
        app.add_middleware(HostCheck, hosts=edge.hosts)


def _make_basics(served: Served, gate: Gate) -> APIRouter:
    router = APIRouter()

    @router.get("/health", response_model=HealthReply, responses=describe_health())
    @router.get("/ready", response_model=HealthReply, responses=describe_health())
    async def health() -> JSONResponse:
        """200 when the engine can answer, else 503 with the reason."""
        state = served.engine.health()
        status, reason = ("draining", CLOSING) if gate.is_closed else (state.state, state.reason)
        return JSONResponse({"status": status, "reason": reason}, 200 if status == "ready" else 503)

    @router.get("/version", response_model=VersionReply)
    async def version() -> dict[str, str]:
        """The version of Parallax."""
        return {"version": metadata.version("parallax-core")}

    @router.get("/v1/models", response_model=ModelsReply, responses=describe_errors(401, 403))
    async def list_models() -> dict[str, object]:
        """List the one model served here."""
        return {"object": "list", "data": [served.describe()]}

    @router.get("/v1/models/{model_id:path}", response_model=ModelReply, responses=describe_errors(401, 403, 404))
    async def retrieve_model(model_id: str) -> dict[str, object]:
        """Describe the model, if it is the one served here."""
        served.check_model(model_id)
        return served.describe()

    return router
