"""The models that a server knows, and which of them are loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import fastapi
import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parallax_core.base.errors import InvalidRequest
from parallax_core.contracts.engine import Health
from parallax_core.contracts.meter import Collector
from parallax_core.contracts.status import (
    Described,
    ModelState,
    NodeStatus,
    PlanStatus,
    ReplicaStatus,
    ServedModel,
    ServerStatus,
)
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.server.body_messages import BodyReading, BodyRequest, DirectAnswer, UnknownModel
from parallax_core.server.hosting import FixedModel, HostedModel
from parallax_core.server.meters import Meters
from parallax_core.server.model_errors import ModelNotLoaded
from parallax_core.server.model_name import find_model
from parallax_core.server.quota import Quota
from parallax_core.server.response import while_connected
from parallax_core.server.response_models import ModelReply
from parallax_core.server.served_adapters import ServedAdapter, ServedAdapters
from parallax_core.server.service import Service

RANKS: dict[ModelState, int] = {"ready": 0, "loading": 1, "draining": 2, "unloaded": 3}
"""The order of models in lists: those that answer come first."""
SMALL = 2**20
"""Bytes of a body in which the model is found within about two milliseconds."""
RELEASES = "model_releases"
"""Where the state of a request has what is to be called at its end."""


@dataclass(slots=True, eq=False)
class ModelEntry:
    """A model that clients may name."""

    id: str
    """What clients call it."""
    source: str
    """What the host finds it by."""
    state: ModelState = "unloaded"
    hosted: HostedModel | None = None
    """None: it is not loaded."""
    error: str = ""
    """Why the last attempt to load it failed; empty after a success or without an attempt."""
    num_requests: int = 0
    """The requests that are being answered."""
    loaded: int = 0
    """Load sequence number, across all models; 0 if it was never loaded."""

    @property
    def status(self) -> ModelState:
        """Its state; a model whose engine builds a pipeline anew is being loaded again."""
        is_ready = self.hosted is None or self.hosted.service.engine.health().state == "ready"
        return self.state if is_ready or self.state != "ready" else "loading"

    @property
    def is_idle(self) -> bool:
        """Whether no request for it is being answered, also not in the background."""
        return not self.num_requests and not (self.hosted and len(self.hosted.service.running))

    def describe_absence(self) -> ModelNotLoaded:
        """Return the error for a client that needs it now."""
        if self.state == "loading":
            return ModelNotLoaded(f"the model {self.id!r} is being loaded", "try again in a while")
        if self.state == "draining":
            return ModelNotLoaded(f"the model {self.id!r} is being unloaded", "GET /v1/models lists those that answer")
        message = f"the model {self.id!r} is known to this server, and not loaded"
        hint = f"an administrator loads it with `parallax models load {self.id}` or POST /v1/cluster/models"
        if self.error:  # which may have paths and addresses in it
            message += ", and could not be loaded the last time"
            hint = "an administrator sees why with `parallax models served` or GET /v1/cluster/models"
        return ModelNotLoaded(message, hint)


Demand = Callable[[ModelEntry], Awaitable[None]]
"""Loads a model because a request needs it."""


@dataclass(eq=False)
class ServedModels:
    """The models of a server, by their ids, and what they share. Belongs to one event loop."""

    meters: Meters = field(default_factory=Meters)
    quota: Quota = field(default_factory=Quota)
    backlog: UnreadOutput = field(default_factory=UnreadOutput)
    """Bounds the output that clients have not read."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """What clients may call models besides their ids; see `ServerOptions.aliases`."""
    bodies: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What reads each kind of body; see `ReaderSetup.bodies`."""
    adapters: ServedAdapters = field(default_factory=dict)
    """The LoRA adapters that clients may name as models, by name; an id or another name of a model goes first."""
    collectors: list[Collector] = field(default_factory=list)
    """Collect the metrics of dialects, for the one that shows metrics."""
    known: dict[str, ModelEntry] = field(default_factory=dict)
    load_on_demand: Demand | None = None
    """None: requests load nothing."""
    changes: object | None = None
    """What loads and unloads models while they are served, for the dialect that has its routes; None: nothing does."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the models of the start can answer."""
    list_waiting: Callable[[], Sequence[NodeStatus]] = tuple
    """Returns the nodes that have joined and wait for a stage."""
    list_nodes: Callable[[], Sequence[NodeStatus]] = tuple
    """Returns all nodes that have joined."""
    find_plan: Callable[[str], PlanStatus | None] = lambda _: None
    """Returns what is planned for a loaded model, and for the cluster if the id is empty; None: the user chose."""
    _num_loads: int = 0

    @classmethod
    def only(cls, service: Service) -> ServedModels:
        """Return the models of a server that serves one."""
        models = cls(service.meters, service.quota, service.backlog, service.options.aliases, adapters=service.adapters)
        models.add_loading(service.model_id, service.model_id, FixedModel(service))
        return models

    def add_loading(self, model_id: str, source: str, hosted: HostedModel) -> None:
        """Add a model that is about to start."""
        self.known[model_id] = ModelEntry(model_id, source, "loading", hosted)

    def note_ready(self, known: ModelEntry) -> None:
        """Note that a model can answer."""
        self._num_loads += 1
        known.state, known.loaded, known.error = "ready", self._num_loads, ""

    @property
    def all(self) -> list[ModelEntry]:
        """All models, those that answer first."""
        return sorted(self.known.values(), key=lambda each: (RANKS[each.state], each.loaded))

    @property
    def loaded(self) -> list[ModelEntry]:
        """The models that are loaded or being loaded, those that answer first."""
        return [each for each in self.all if each.hosted is not None]

    @property
    def services(self) -> list[Service]:
        """The services of all loaded models, those that answer first."""
        return [each.hosted.service for each in self.all if each.hosted is not None]

    @property
    def main(self) -> Service:
        """The service of the model that answers requests which name none.

        Raises:
            ModelNotLoaded: if none is loaded.
        """
        if services := self.services:
            return services[0]
        raise ModelNotLoaded("no model is loaded", "an administrator loads one with `parallax models load MODEL`")

    def find_reader(self) -> BodyReading | None:
        """Return what reads bodies in other processes; None: no model is ready, so no answer can be held up here."""
        return next((each.reader for each in self.services if each.engine.health().state == "ready"), None)

    def health(self) -> Health:
        """Return the health of the best model: ready if any can answer."""
        healths = [service.engine.health() for service in self.services]
        nothing = Health(state="starting", reason="no model is loaded; `parallax models load MODEL` loads one")
        return next((each for each in healths if each.state == "ready"), healths[0] if healths else nothing)

    def describe(self) -> ServerStatus:
        """Return the status of the server, from memory."""
        models = tuple(
            ServedModel(
                id=each.id,
                names=tuple(self.list_names(each)),
                state=each.status,
                error=each.error,
                replicas=_describe_replicas(each.hosted) if each.hosted is not None else (),
            )
            for each in self.all
        )
        main = models[0].id if models and models[0].replicas else ""
        return ServerStatus(
            health=self.health(),
            models=models,
            nodes=tuple(self.list_nodes()),
            plan=self.find_plan(main) or self.find_plan(""),
        )

    async def start(self) -> None:
        """Start the models that are loaded from the beginning.

        Raises:
            ParallaxError: if one cannot start.
        """
        await asyncio.gather(*(self._start(each) for each in self.loaded))

    async def stop(self) -> None:
        """Stop all models."""
        await asyncio.gather(*(each.hosted.stop() for each in self.loaded if each.hosted is not None))

    async def find(self, http: fastapi.Request) -> Service:
        """Return the service of the model that a request names in its body; it stays loaded until the request ends.

        Raises:
            UnknownModel: if this server does not know it.
            InvalidRequest: if it names none, this server knows several, and none is loaded.
            ModelNotLoaded: if it is not loaded, and cannot be now.
        """
        known = await self._choose(http)
        if known.state != "ready" and self.load_on_demand is not None:
            await while_connected(http, self.load_on_demand(known))
        # Before the first model is ready, its engine says what it waits for.
        if known.hosted is None or known.state == "draining" or (known.state == "loading" and self._num_loads):
            raise known.describe_absence()
        known.num_requests += 1
        http.scope["state"][RELEASES].append(lambda: _release(known))
        return known.hosted.service

    def get(self, model_id: str) -> ModelEntry:
        """Return the model of an id or of another name; an id goes first.

        Raises:
            UnknownModel: if this server does not know it.
        """
        if (found := self.look_up(model_id)) is not None:
            return found
        names = ", ".join(repr(each.id) for each in self.all[:10])
        raise UnknownModel(f"the model {model_id!r} does not exist", f"this server has {names}")

    def look_up(self, model_id: str) -> ModelEntry | None:
        """Return the model of an id, else of another name, else of an adapter; None if this server does not know it."""
        if (found := self.known.get(model_id) or self.known.get(self.aliases.get(model_id, ""))) is not None:
            return found
        return self.known.get(self.adapters[model_id].model_id) if model_id in self.adapters else None

    def describe_adapters(self, created: int) -> list[ModelReply]:
        """Return the adapters in OpenAI's form, as vLLM lists them; ``created`` as for `describe_model`."""
        found = [(self.known.get(each.model_id), each) for each in self.adapters.values()]
        return [describe_model(known, created, each.name, each) for known, each in found if known is not None]

    def list_names(self, known: ModelEntry) -> list[str]:
        """Return the names that clients may call a model, the last of which is its id."""
        return [*(name for name in self.aliases if self.look_up(name) is known and name != known.id), known.id]

    async def _start(self, known: ModelEntry) -> None:
        assert known.hosted is not None, "it is loaded"
        await known.hosted.start()
        self.note_ready(known)

    async def _choose(self, http: fastapi.Request) -> ModelEntry:
        if len(self.known) == 1 and (loaded := self.loaded):
            return loaded[0]  # it refuses other names itself
        if (name := await self._find_name(http)) is not None:
            return self.get(name)
        if loaded := self.loaded:
            return loaded[0]
        if len(self.known) == 1:
            return next(iter(self.known.values()))
        message = f"'model' is missing, and none of this server's models is loaded: {list_ids(self.all)}"
        raise InvalidRequest(message, "model", "name one of them")

    async def _find_name(self, http: fastapi.Request) -> str | None:
        """Return the model that a body names; a large body is read in another process."""
        body = await http.body()
        if len(body) <= SMALL or (reader := self.find_reader()) is None:  # if not valid, any reader says why
            return find_model(body)
        ask = BodyRequest(kind="model", body=body, client=self.quota.identify(http))
        answer = await while_connected(http, reader.read(ask))
        return find_model(answer.content.body) if isinstance(answer.content, DirectAnswer) else None


def _describe_replicas(hosted: HostedModel) -> tuple[ReplicaStatus, ...]:
    engine = hosted.service.engine
    return engine.describe() if isinstance(engine, Described) else (ReplicaStatus(health=engine.health()),)


def _release(known: ModelEntry) -> None:
    known.num_requests -= 1


def describe_model(known: ModelEntry, created: int, name: str = "", adapter: ServedAdapter | None = None) -> ModelReply:
    """Return a model in OpenAI's form.

    Args:
        known: the model.
        created: the start of the server, in seconds since 1970.
        name: the name by which the client knows it; empty: its id.
        adapter: describe this adapter of the model; None: the model itself.
    """
    if known.hosted is None:
        reply = ModelReply(id=known.id, root=known.id, created=created, status=known.status)
    else:
        reply = known.hosted.service.describe(known.status)
    if adapter is not None:
        return msgspec.structs.replace(reply, id=adapter.name, root=adapter.root, parent=known.id)
    return msgspec.structs.replace(reply, id=name or known.id)


class ModelReleases:
    """Middleware that ends the use of a model when its request ends; see `ServedModels.find`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        releases: list[Callable[[], None]] = []
        scope.setdefault("state", {})[RELEASES] = releases
        try:
            await self._app(scope, receive, send)
        finally:
            for release in releases:
                release()


def list_ids(models: Sequence[ModelEntry]) -> str:
    """Return the ids of models as a text."""
    return ", ".join(repr(each.id) for each in models) or "none"
