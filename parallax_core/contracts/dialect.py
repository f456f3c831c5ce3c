"""API dialects: HTTP APIs that the server speaks, such as OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parallax_core.base.refs import Ref
from parallax_core.contracts.meter import ServerMeter
from parallax_core.contracts.surface import RouteRole


@dataclass(frozen=True, kw_only=True, slots=True)
class BodySpec:
    """A kind of request body. It is read in a process of its own, which imports nothing else of the dialect."""

    path: str
    """The path of the route that it is sent to."""
    schema: Ref[Any]
    """Its schema, a subclass of `parallax_core.api.dialect.Strict` with a field ``model``."""
    read: Ref[Callable[[Any, Any, Any], Any]]
    """Gets a `BodyReader`, the valid body and the `BodyRequest`, and returns what the route needs: a `ParsedBody`, a
    `DirectAnswer`, or `MoreNeeded`. It raises `InvalidRequest` for what cannot be served."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorForm:
    """The form of errors, where it is not OpenAI's."""

    paths: tuple[str, ...]
    """Where errors have it, also below each path, and whoever refuses the request."""
    write: Callable[[int, Mapping[str, Any], str], tuple[int, dict[str, Any]]]
    """Returns the status and the body for a status, the error in OpenAI's form, and the id of the request."""
    schema: type | None = None
    """The schema of the body, for ``/openapi.json``; None: it is not described."""
    header: str = ""
    """A header by which its clients are known below ``/v1/models``, and at paths where nothing is; empty: there is
    none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """A dialect that a server speaks."""

    routers: tuple[Any, ...]
    """Each a ``fastapi.APIRouter``, whose routes state their roles by `needs_role`. A route may ask for a header: it
    comes before any other at that path."""
    schemas: tuple[type, ...] = ()
    """Schemas for ``/openapi.json`` to which none of its routes refers by `describe_answer` and the like."""
    errors: ErrorForm | None = None
    """None: its errors have OpenAI's form."""
    describe: Callable[[dict[str, Any]], None] | None = None
    """Corrects the description of the server, an OpenAPI document; None: there is nothing to correct."""
    meter: ServerMeter | None = None
    """Measures the requests and errors of the server, of whatever dialect; None: it measures nothing."""
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Runs beside the models, from the start of the server, also before they can answer. It is cancelled, and its end
    awaited, before they are stopped. If it raises, that is logged, and the server goes on. None: nothing runs."""
    close: Callable[[], Awaitable[None]] | None = None
    """Closes what it has opened; called once, when the models and the connections have ended."""
    path_middleware: Callable[[Any], Any] | None = None
    """Makes ASGI middleware of the application that comes next. It sees every request of the server, and may correct
    its path: nothing has been decided by the path yet. None: there is none."""
    body_middleware: Callable[[Any], Any] | None = None
    """Makes ASGI middleware that sees every request which its client may make, whichever route it is for, and may
    decode its body. That is limited as it was sent: what comes of it has to keep to
    `ServerOptions.max_body_bytes`, too. None: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DialectSpec:
    """Offers an API dialect."""

    name: str
    """Its name in ``parallax plugins``."""
    summary: str
    """One line for ``parallax plugins``."""
    open: Ref[Callable[[Any, Any], Dialect]]
    """Gets the `ServedModels` and the `ServerOptions`, before any model has started. A `ParallaxError` ends the start
    of the server; after anything else, the server starts without the dialect."""
    bodies: Mapping[str, BodySpec] = field(default_factory=dict)
    """The bodies that its routes read by `Service.read` and `Service.write`, by a name that no other dialect has."""
    remedy: str = ""
    """What to do if it cannot be imported, such as the package to install."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerDescription:
    """The declarations of a server. A route of a plugin describes the API by them, such as ``/openapi.json``."""

    routes: Sequence[Any]
    """All routes, each a Starlette ``Route``, also those that plugins have added. Those of dialects describe their
    bodies and answers by `describe_body`, `describe_answer` and the like, as parts of an OpenAPI document."""
    dialects: Sequence[Dialect]
    """What each declares beside its routes: see `Dialect.schemas` and `Dialect.describe`."""
    find_errors: Callable[[str], ErrorForm | None]
    """Returns the form of errors at a path; None: OpenAI's."""
    find_role: Callable[[str, str], RouteRole | None]
    """Returns the role that a path and a method need; None: no key."""
    needs_key: bool
    """Whether the server has API keys."""
