"""The interface through which a plugin extends the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from parallax_core.base.refs import Ref
from parallax_core.contracts.engine import Engine
from parallax_core.contracts.status import ServerStatus

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Callable[..., Any])
RouteRole = Literal["user", "metrics", "admin"]
"""What an API key has to be for."""
ROLE = "__parallax_role__"
"""The attribute of a function that answers a route, in which it states its role."""
SHOWS_GUESTS = "__parallax_shows_guests__"
"""The attribute in which it states whether guests may read it."""


def needs_role(role: RouteRole | None, *, shows_guests: bool = False) -> Callable[[Answer], Answer]:
    """Return a decorator by which the function of a route states the role that its clients need; None: no key.

    The role ``admin`` may use all routes. A route of a plugin that states none is for administrators, unless it only
    answers GET and HEAD: then it is for users. With ``shows_guests``, clients of machines that have joined may read it,
    too, on a server without keys; the state of their requests has their role.
    """

    def state(answer: Answer) -> Answer:
        setattr(answer, ROLE, role)
        setattr(answer, SHOWS_GUESTS, shows_guests)
        return answer

    return state


@dataclass(frozen=True, slots=True)
class KnownClient:
    """A client that is known by something else than an API key."""

    id: str
    """Tells it apart from others that the same authenticator knows, such as for limits."""
    role: RouteRole
    """Its rights, as those of an API key."""
    key: bytes | None = None
    """The SHA-256 of the API key by which it is known: without that key it is unknown, and has no rights beyond it."""


@runtime_checkable
class Authenticator(Protocol):
    """Knows clients that send no API key, such as browsers with a session; see `HttpSurface.authenticate_by`."""

    def authenticate(self, scope: Mapping[str, Any]) -> KnownClient | None:
        """Return the client that sent a request; None: it is unknown.

        It is asked only on a server with API keys, where a request has none and its route needs a role. It answers from
        memory, since it holds up all clients meanwhile. If it raises, that is logged, and the client is unknown.

        Args:
            scope: the head of the request, as ASGI has it: ``method``, ``path``, ``headers``, ``scheme``, ``client``.
        """


class ForwardedAnswer(Protocol):
    """The response of one of the server's own routes to a plugin."""

    @property
    def status(self) -> int:
        """The HTTP status."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body as they come; once. An error of the server is raised."""

    async def read(self) -> bytes:
        """Return the rest of the body."""

    async def read_json(self, kind: type[T]) -> T:
        """Return the rest of the body, decoded as ``kind``, in a thread if it is large.

        Parts of a large body cost least as ``msgspec.Raw``.
        """

    async def close(self) -> None:
        """End the answer: what has not come is not generated. Idempotent."""


class HttpSurface(Protocol):
    """The HTTP server, before it listens."""

    @property
    def engine(self) -> Engine:
        """The engine that answers requests; not started yet.

        A plugin that submits requests of clients itself, instead of by ``forward``, sets `Request.salt` for each.
        """

    def add_router(self, router: Any) -> None:  # noqa: ANN401 -- core names no HTTP library outside its server
        """Add the routes of a ``fastapi.APIRouter``. The same API keys and limits apply as to all others.

        Each states the role that it needs by `needs_role`.

        Raises:
            TypeError: if it is not a router, or includes other routers, applications or WebSockets.
            ValueError: if one of its routes exists already.
        """

    def add_page(self, path: str, folder: Path) -> None:
        """Serve the files of a folder below a path to everyone, ``index.html`` at the path itself.

        The plugin that implements `parallax_serve_pages` does so, such as ``parallax-web``. Who opens the address of
        the server in a browser is led to the first page.

        They are sent with a Content-Security-Policy that allows scripts, styles, images, fonts and requests of this
        server alone, and nothing inline. A page uses the API by what it fetches: if the server has API keys, the
        operator gets a link that opens a session of the browser once, whose cookie counts as a key of its role for
        what this server's own pages send, for 12 hours. ``GET /session`` says which session there is, ``DELETE
        /session`` closes it, and ``POST /session/links?page=PATH&role=ROLE`` makes a further link for an administrator.

        Args:
            path: one segment, such as ``/chat``.
            folder: has ``index.html``; what begins with a dot is not served.

        Raises:
            ValueError: if there is no such file, the path has several segments, something is there already, or no
                plugin serves pages.
        """

    def authenticate_by(self, authenticator: Authenticator) -> None:
        """Know clients without an API key by a plugin, on a server with keys; that of an earlier plugin goes first."""

    def status(self) -> ServerStatus:
        """Return the models, the nodes and the plan of the server, from memory, in any state.

        ``request.state.role`` says what the client of a route may see of it.
        """

    def write_errors(self, path: str, write: Callable[[int, str], dict[str, Any]]) -> None:
        """Send every error at a path, or below it, in the form of the plugin's API, also those of core.

        Args:
            path: the path, such as ``/api``; also requests for which there is no route are answered so.
            write: returns the body, a JSON object, for a status and a message.

        Raises:
            ValueError: if errors there, above or below it have a form already.
        """

    async def read(self, request: Any, reader: Ref[Callable[[bytes], T]], kind: type[T]) -> T:  # noqa: ANN401 -- as above
        """Read the body of a request by a function of the plugin, in a process that reads bodies.

        A route that parsed a large body itself would hold up the streams of all clients meanwhile.

        Args:
            request: the ``fastapi.Request`` that a route of the plugin got.
            reader: the function, which gets the body; that process imports it, so its module is light.
            kind: the type of what it returns, which goes through MessagePack: a ``msgspec.Struct``, or ``bytes``.

        Raises:
            InvalidRequest: if the function raises it, or takes too long.
            ParallaxError: if too many bodies wait already, or the process is lost.
        """

    def rewrite_bodies(self, path: str, rewrite: Ref[Callable[[bytes], bytes]]) -> None:
        """Rewrite the bodies sent to one of the server's own routes by a function of the plugin.

        So a plugin gives a route the fields of another API. It runs in a process that reads bodies, as `read` says.

        Args:
            path: the path of the route, such as ``/v1/chat/completions``.
            rewrite: returns the JSON that the route reads, for what a client sent; it may raise `InvalidRequest`.

        Raises:
            ValueError: if no bodies are read there in such a process, or another plugin rewrites them already.
        """

    async def forward(self, request: Any, path: str, body: bytes | None = None) -> ForwardedAnswer:  # noqa: ANN401
        """Forward a request to one of the server's own routes, such as ``/v1/chat/completions``.

        It is answered as the client's own: with its key, its limits, and an end when the client is gone. Close the
        answer when you are done with it.

        Args:
            request: the ``fastapi.Request`` that a route of the plugin got, whose body has been read.
            path: the path of the route; one for administrators only from a route of the plugin that is for them too.
            body: the JSON for a POST; None: a GET.

        Raises:
            ValueError: if the path needs a role that the plugin's route does not, or no key.
        """
