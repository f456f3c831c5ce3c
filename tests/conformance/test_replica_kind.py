"""A stranger's kind of replicas passes the kit, and the kit catches each fault that is planted in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import msgspec
import pytest

from parallax_core.api import (
    Delta,
    EngineBackend,
    EngineInfo,
    EnginePlan,
    Finish,
    JoinedPeer,
    NodeLink,
    NodeService,
    NodeServiceSpec,
    PeerLost,
    Ref,
    ReplicaSpec,
    Request,
    RequestId,
    Sampling,
    ServiceMessage,
    StageLost,
    Takers,
    TokenEngine,
    Unavailable,
    service_tag,
)
from parallax_core.api.node import Backoff
from parallax_core.api.replica import EngineBase, NodeContext, QueueStream, ReplicaPlan
from parallax_core.testing.replica_kind import TOY, ReplicaKindConformance
from tests.conformance.harness import run_test

OURS = "strangers"
"""The distribution of the stranger."""


class Open(ServiceMessage, frozen=True, tag=service_tag(OURS, 0)):
    """Opens a model on a node."""

    backend: str
    model: str


class Opened(ServiceMessage, frozen=True, tag=service_tag(OURS, 1)):
    """Reports how that went."""

    fault: str = ""
    parts: dict[str, str] = msgspec.field(default_factory=dict)


class Ask(ServiceMessage, frozen=True, tag=service_tag(OURS, 2)):
    """Asks for an answer."""

    id: str
    prompt: tuple[int, ...]
    length: int


class Token(ServiceMessage, frozen=True, tag=service_tag(OURS, 3)):
    """A token of an answer."""

    most_per_s: ClassVar[float] = 10_000.0

    id: str
    token: int
    is_last: bool


ALL = (Open, Opened, Ask, Token)


class Actor(NodeService):
    """Opens the model of a node, and answers one token at a time."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        tasks: set[asyncio.Task[None]] = set()
        engines: list[TokenEngine] = []

        def start(work: Coroutine[Any, Any, None]) -> None:
            tasks.add(task := asyncio.create_task(work))
            task.add_done_callback(tasks.discard)

        try:
            yield {
                Open: lambda message: start(self.open(peer.channel, message, engines)),
                Ask: lambda message: start(answer(peer.channel, message, engines)),
            }
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*[engine.stop() for engine in engines])

    async def open(self, link: NodeLink, message: Open, engines: list[TokenEngine]) -> None:
        await self.context.pause()
        try:
            found = self.context.prepare_model(message.model, message.backend, lambda *_: None)
            backend = cast("EngineBackend", found.backend)
            engine = backend.open_engine(EnginePlan(model=found.folder))
            await engine.start()
        except Exception as error:  # noqa: BLE001 -- the head has to know any
            await link.send(Opened(str(error)))
            return
        engines.append(engine)
        await link.send(Opened("", dict(found.weights_parts)))


async def answer(link: NodeLink, message: Ask, engines: list[TokenEngine]) -> None:
    request = Request(
        id=RequestId(message.id), prompt=message.prompt, max_tokens=message.length, sampling=Sampling(temperature=0.0)
    )
    async for delta in engines[0].submit(request):
        for token in delta.tokens:
            await link.send(Token(message.id, token, is_last=False))
    await link.send(Token(message.id, 0, is_last=True))


class ActorEngine(EngineBase[NodeLink]):
    """An engine over an actor."""

    def __init__(self, plan: ReplicaPlan) -> None:
        super().__init__(plan.on_lost)
        self.plan = plan
        self.link: NodeLink | None = None
        self.lengths: dict[RequestId, int] = {}

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            num_layers=len(TOY.layers),
            vocab_size=97,
            context_length=64,
            max_running=8,
            max_batch_tokens=64,
            seed="none",
        )

    def submit(self, request: Request) -> QueueStream:
        if self._health.state != "ready" or self.link is None:
            raise Unavailable(f"the actor is {self._health.state}", "wait")
        self.lengths[request.id] = len(request.prompt)
        self._opening_of(self.link.send(Ask(request.id, request.prompt, request.max_tokens or 1)))
        return self._add_stream(request.id, self.plan.backlog)

    def check_room(self) -> None:
        if self._health.state != "ready":
            raise Unavailable("the actor is away", "wait")

    def _opening_of(self, sending: Coroutine[Any, Any, None]) -> None:
        self.sending = asyncio.create_task(sending)

    async def _open(self) -> NodeLink:
        self.plan.weights.begin()
        try:
            link = await self.plan.node.start()
            link.learn(ALL)
            await link.send(Open(self.plan.backend, self.plan.model))
            opened = await link.receive()
            await self.check(opened)
        except BaseException:
            await self.give_up()
            raise
        self.tell_progress()
        return link

    async def check(self, opened: Opened) -> None:
        if opened.fault:
            raise StageLost(opened.fault)
        await self.plan.weights.check("the actor", opened.parts)

    async def give_up(self) -> None:
        await self.plan.node.kill()

    def tell_progress(self) -> None:
        self.plan.progress("opening", 1, 1)

    def _begin(self, opened: NodeLink) -> Coroutine[None, None, None]:
        self.link = opened
        return self._serve()

    async def _serve(self) -> None:
        backoff = Backoff(self._excuse)
        while self.link is not None:
            try:
                while True:
                    self.take(await self.link.receive())
            except PeerLost:
                self.lose()
            self.link = await self.reopen(backoff)
            self._note_ready()

    def lose(self) -> None:
        self._change_health("starting", "the actor was lost")
        self._end_streams("error", "the actor was lost", list(self._streams))

    async def reopen(self, backoff: Backoff) -> NodeLink:
        while True:
            try:
                await backoff.wait("the actor was lost")
                return await self._open()
            except StageLost as error:
                self._excuse(error.message)

    def take(self, message: Token) -> None:
        request_id = RequestId(message.id)
        if not message.is_last:
            self._deliver([(request_id, Delta(tokens=(message.token,)))])
            return
        end = Finish(reason="length", prompt_tokens=self.lengths[request_id], output_tokens=0)
        self._deliver([(request_id, Delta(ended="length", finish=end))])

    async def _release(self) -> None:
        await self.plan.node.end()

    def _needs(self) -> str:
        return ""

    def _cancel(self, request_id: RequestId) -> None:
        self.lengths.pop(request_id)


class Kit(ReplicaKindConformance):
    spec = ReplicaSpec(name="actor", summary="an actor", make=Ref(f"{__name__}:ActorEngine"))
    service = NodeServiceSpec(
        name="actor", summary="opens actors", messages=Ref(f"{__name__}:ALL"), node=Ref(f"{__name__}:Actor")
    )


class TestActors(Kit):
    """A good kind over a worker passes."""


class Mute(ActorEngine):
    """Leaves its streams alone when the actor is lost."""

    def lose(self) -> None:
        self._change_health("starting", "the actor was lost")


class Lame(ActorEngine):
    """Starts its worker only once."""

    async def reopen(self, backoff: Backoff) -> NodeLink:
        del backoff
        await asyncio.Event().wait()
        raise AssertionError


class Silent(ActorEngine):
    """Tells nobody of losses."""

    def __init__(self, plan: ReplicaPlan) -> None:
        super().__init__(plan)
        self._on_lost = None


class Blind(ActorEngine):
    """Does not notice that its worker is away."""

    def _excuse(self, reason: str) -> None:
        """Stay ready."""

    def lose(self) -> None:
        self._end_streams("error", "the actor was lost", list(self._streams))


class Gullible(ActorEngine):
    """Compares no weights."""

    async def check(self, opened: Opened) -> None:
        """Take any."""


class Lingering(ActorEngine):
    """Leaves its worker when it stops."""

    async def _release(self) -> None:
        """Leave all as it is."""


class Untidy(Lingering):
    """Leaves its worker when it cannot open the model, too."""

    async def give_up(self) -> None:
        """Leave all as it is."""


class Wrong(ActorEngine):
    """Gives other tokens than its backend."""

    def take(self, message: Token) -> None:
        super().take(Token(message.id, message.token + 1, message.is_last))


class Still(ActorEngine):
    """Says nothing of its loading."""

    def tell_progress(self) -> None:
        """Say nothing."""


def make_nothing(_: ReplicaPlan) -> Any:
    return object()


LOST = "test_lost_worker_ends_what_has_begun_and_is_started_again"
FAULTS: list[tuple[Callable[[ReplicaPlan], Any], str, str]] = [
    (Mute, LOST, "a stream did not end"),
    (Lame, LOST, "it is not ready again"),
    (Silent, LOST, "it has told of []"),
    (Blind, "test_replica_takes_no_request_while_its_worker_is_away", "it does not notice the loss"),
    (Gullible, "test_other_weights_are_refused", "did not raise ParallaxError"),
    (Untidy, "test_model_that_cannot_be_opened_is_an_error_and_leaves_no_worker", "the worker is left"),
    (Lingering, "test_stop_ends_every_stream_and_the_worker", "the worker is left"),
    (Wrong, "test_replica_gives_the_tokens_of_its_backend_and_tells_of_loading", "it gives ["),
    (Still, "test_replica_gives_the_tokens_of_its_backend_and_tells_of_loading", "no progress was heard"),
    (make_nothing, LOST, "which has no start, stop, submit, health"),
]


@pytest.mark.parametrize(("make", "name", "finding"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_kit_catches_a_fault(make: Callable[[ReplicaPlan], Any], name: str, finding: str) -> None:
    class Faulty(Kit):
        patience_s = 1.5
        spec = ReplicaSpec(name="actor", summary="an actor", make=Ref(f"{__name__}:{make.__name__}"))

    assert finding in run_test(Faulty, name)
