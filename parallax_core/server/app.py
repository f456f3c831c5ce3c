"""Makes the HTTP application: routes, middleware and the handlers of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response

from parallax_core.base.errors import SHUTTING_DOWN, UsageError
from parallax_core.contracts.surface import needs_role
from parallax_core.plugins.host import PluginHost
from parallax_core.server.access_log import REQUEST_ID, AccessLog
from parallax_core.server.auth import KeyCheck
from parallax_core.server.body_limit import BodyLimit
from parallax_core.server.dialects import ServedDialects
from parallax_core.server.drain import Drain, DrainMiddleware
from parallax_core.server.error_forms import REQUEST_ID as OTHER_REQUEST_ID
from parallax_core.server.error_forms import ErrorFormMiddleware, ErrorForms
from parallax_core.server.errors import add_handlers
from parallax_core.server.host_check import HostCheck
from parallax_core.server.ignored_header import HEADER, IgnoredFieldsHeader
from parallax_core.server.json_response import respond_with
from parallax_core.server.methods import METHODS, HeadRequests
from parallax_core.server.openapi import describe_answer, describe_health
from parallax_core.server.options import ServerOptions
from parallax_core.server.origin_check import OriginCheck
from parallax_core.server.rate_limit import RateLimit
from parallax_core.server.read_timeout import ReadTimeout
from parallax_core.server.response_models import HealthReply, VersionReply
from parallax_core.server.route_roles import RouteRoles
from parallax_core.server.served_models import ModelReleases, ServedModels
from parallax_core.server.unused_query import note_unused


def make_app(models: ServedModels, options: ServerOptions, drain: Drain, plugins: PluginHost) -> FastAPI:
    """Return the application for ``models``, with the API dialects of plugins and all its middleware.

    Raises:
        ParallaxError: if a dialect cannot be opened, and says why.
        UsageError: if traces are wanted, and nothing measures.
    """
    # Traces come from plugins alone: FastAPI's would contain text of clients wherever an error quotes it.
    silent: Any = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
    app = FastAPI(title="Parallax", openapi_url=None, redirect_slashes=False, telemetry=silent)
    own = _make_basics(models, drain)
    dialects = ServedDialects(own)
    plugins.open_dialects(lambda spec, load: dialects.add(spec, load()(models, options)))
    models.meters.all += [each.meter for each in dialects.opened if each.meter is not None]
    if options.otlp_endpoint and not models.meters.all:
        raise UsageError("otlp_endpoint is set, and no plugin sends traces", "pip install 'parallax-observe[otel]'")
    forms = ErrorForms(each.errors for each in dialects.opened if each.errors is not None)
    app.state.dialects, app.state.error_forms, app.state.roles, app.state.rewriters = dialects, forms, RouteRoles(), {}
    app.state.authenticators, app.state.pages, app.state.has_keys = [], [], options.keys.are_needed
    add_handlers(app)
    for router in dialects.routers:
        app.state.roles.add_plugins(router)
        app.include_router(router, dependencies=[Depends(note_unused)])
    app.state.roles.add_own(own)
    app.include_router(own, dependencies=[Depends(note_unused)])
    app.add_middleware(ModelReleases)
    app.add_middleware(IgnoredFieldsHeader, is_lenient=options.is_lenient)
    _add_all(app, (each.body_middleware for each in dialects.opened))
    _add_options(app, options, drain)
    app.add_middleware(ErrorFormMiddleware, forms=forms)
    _add_all(app, (each.path_middleware for each in dialects.opened))
    app.add_middleware(HeadRequests)
    app.add_middleware(AccessLog, count_error=models.meters.count_error, logs_bodies=options.logs_bodies)
    return app


def _add_all(app: FastAPI, given: Iterable[Callable[[Any], Any] | None]) -> None:
    """Add the middleware of dialects, the first one innermost."""
    for middleware in given:
        if middleware is not None:
            app.add_middleware(middleware)


def _add_options(app: FastAPI, options: ServerOptions, drain: Drain) -> None:
    """Add the middleware that may refuse a request, from the innermost to the outermost."""
    app.add_middleware(BodyLimit, limit=options.max_body_bytes)
    app.add_middleware(ReadTimeout, drain=drain, limit_s=options.request_s)
    app.add_middleware(DrainMiddleware, drain=drain)
    if options.max_concurrent or options.max_per_minute:
        app.add_middleware(RateLimit, options=options)
    app.add_middleware(KeyCheck, keys=options.keys, roles=app.state.roles, authenticators=app.state.authenticators)
    app.add_middleware(OriginCheck, options=options, roles=app.state.roles)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=[*METHODS, "HEAD"],
            allow_headers=["*"],  # whatever a page's SDK sends: an allowed page may do what its client may
            expose_headers=[REQUEST_ID, OTHER_REQUEST_ID, HEADER, "Retry-After"],
        )
    if options.hosts:
        app.add_middleware(HostCheck, hosts=options.hosts)


def _make_basics(models: ServedModels, drain: Drain) -> APIRouter:
    router = APIRouter()

    @router.get("/health", responses=describe_health())
    @router.get("/ready", responses=describe_health())
    @needs_role(None)
    async def health() -> Response:
        """200 when a model can answer, else 503 with the reason."""
        state = models.health()
        reply = HealthReply("draining", SHUTTING_DOWN) if drain.is_closed else HealthReply(state.state, state.reason)
        return respond_with(reply, 200 if reply.status == "ready" else 503)

    @router.get("/version", responses=describe_answer(VersionReply))
    @needs_role(None)
    async def version() -> Response:
        """The version of Parallax."""
        return respond_with(VersionReply(metadata.version("parallax-core")))

    return router
