"""The kit for kinds of replicas: how they serve over a worker, which may be lost at any time.

Subclass it in a test module under a name that begins with ``Test``, and give the kind and the service of its nodes.
Their backend is a toy, whose tokens are known, and a worker is a task of this process in place of a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parallax_core.base.errors import ParallaxError, Unavailable, Unsupported
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.contracts.engine import Admitting, Delta, Stream
from parallax_core.contracts.node_service import NodeService, NodeServiceSpec
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.replica import PreparedModel, ReplicaPlan, ReplicaSpec
from parallax_core.contracts.token_engine import EnginePlan, TokenEngine
from parallax_core.contracts.transport import Transport, TransportPlan
from parallax_core.node.channel import Channel
from parallax_core.node.executor.weights_check import WeightsCheck
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.node.text_engine import TextEngine
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.session import WorkerSession
from parallax_core.testing.promise import broken, expect
from parallax_core.testing.replica import EngineSubject, Prompt
from parallax_core.testing.runner import in_loop, within
from parallax_core.testing.stage_engine import make_toy_engine
from parallax_core.testing.toy import Toy
from parallax_core.wire.membership import Join

NODE, BACKEND, MODEL = "worker/0/0", "toy", "a toy"
LOOK_S = 0.01
"""Seconds between two looks at what a test waits for."""
KIND = "A kind gives core a `TokenEngine`"
BEGUN = "When its worker is lost, each request that has begun ends with an error"
AGAIN = "the health is ``starting``, and the engine starts its worker again"
LOST = "To be called with the reason of each loss, after which the replica goes on"
START = "Become ready. If it raises, nothing is left running"
STOP = "End every stream and release all resources"
WEIGHTS = "if some differ; it names the parts"
HEARD = "Hears of the loading"
TOY = Toy()

MakeEngine = Callable[[EnginePlan], TokenEngine]
MakeService = Callable[[Any], NodeService | None]


@dataclass(frozen=True, slots=True)
class ToyBackend:
    """A backend that opens engines."""

    make: MakeEngine

    def open_engine(self, plan: EnginePlan) -> TokenEngine:
        """Return an engine, not started."""
        return self.make(plan)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyModels:
    """A node with a backend that is a toy; a `NodeContext`."""

    node: str
    transport: Transport
    make: MakeEngine
    parts: dict[str, str] = field(default_factory=dict)
    """The content of the models."""

    def prepare_model(self, model: str, backend: str, progress: Progress) -> PreparedModel:
        """Return a model that is there already."""
        progress("loading", 1, 1, "bytes")
        if backend != BACKEND:
            raise Unsupported(f"this node has no backend {backend!r}", f"use {BACKEND!r}")
        return PreparedModel(
            name=backend,
            backend=ToyBackend(self.make),
            folder=Path(model),
            memory_share=1.0,
            weights_parts=self.parts,
        )

    async def pause(self) -> None:
        """Do nothing: no other service uses a device."""


class LocalNode:
    """The worker of a replica as a task of this process; a `ReplicaNode`."""

    name, host = NODE, "here"

    def __init__(self, make_service: MakeService, make: MakeEngine) -> None:
        """Give the worker a service, and its backend the engines of ``make``."""
        self._make_service = make_service
        self.make = make
        self.registry = NodeRegistry(InProcessTransport(TransportPlan(node="head", listen="inprocess://")), "head")
        self.parts: dict[str, str] = {}
        """The content of the models of the worker."""
        self.num_started = 0
        self.ends: list[Exception] = []
        """What ended the workers."""
        self._transport: Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._link: Channel | None = None

    @property
    def pid(self) -> int:
        """The number of the worker; 0: none runs."""
        return self.num_started if self._task is not None and not self._task.done() else 0

    async def start(self) -> Channel:
        """Start a worker, and return the link to it."""
        await self.kill()
        self.registry.forget(self.name)
        self.num_started += 1
        self._transport = InProcessTransport(TransportPlan(node=self.name, listen="inprocess://"))
        await self._transport.start()
        self._task = asyncio.create_task(self._work(self._transport))
        self._link = (await self.registry.find(lambda _: 1, self.name)).channel
        return self._link

    async def explain(self) -> str:
        """Return nothing: no process has ended."""
        return ""

    async def kill(self) -> None:
        """End the worker, and the link to it. Idempotent."""
        link, self._link = self._link, None
        if self._transport is not None:
            await self._transport.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if link is not None:
            await link.leave()

    async def end(self) -> None:
        """End the worker. Idempotent."""
        await self.kill()

    async def _work(self, transport: Transport) -> None:
        services = NodeServices(transport)
        made = self._make_service(ToyModels(node=self.name, transport=transport, make=self.make, parts=self.parts))
        if made is not None:
            services.add(made)
        session = WorkerSession(services, self.name, _open_no_stage)
        join = Join(transport.address, (BACKEND,), self.host, 0)
        try:
            await services.run_beside(session.serve(self.registry.address, "head", join))
        except ParallaxError as error:
            self.ends.append(error)
        finally:
            await session.close()
            await transport.stop()


def _open_no_stage(*_: object) -> Any:  # noqa: ANN401 -- it returns nothing
    raise Unsupported("this node opens no stages")


class ReplicaKindConformance(EngineSubject):
    """Tests for a kind of replicas. Replace ``service`` by None if its replicas need no worker."""

    spec: ReplicaSpec
    service: NodeServiceSpec | None
    """What opens the model on the worker of a replica."""
    prompts = ((1, 2, 3), (4, 5), (6, 7, 8, 9))
    patience_s: float = 10.0

    def make_service(self, context: Any) -> NodeService | None:  # noqa: ANN401 -- a `NodeContext`
        """Return the service of a worker."""
        make = self.service.node if self.service is not None else None
        return make.load()(context) if make is not None else None

    def make_node(self, make: MakeEngine | None = None) -> LocalNode:
        """Return a worker, not started; ``make`` gives the engines of its backend, by default those of a toy."""
        return LocalNode(self.make_service, make or (lambda _: make_toy_engine(TOY)))

    def make_plan(self, node: LocalNode, **fields: Any) -> ReplicaPlan:  # noqa: ANN401 - fields of a plan
        """Return the plan of a replica."""
        given = {"weights": WeightsCheck(), "backlog": UnreadOutput(), "status_s": 0.05, **fields}
        return ReplicaPlan(rank=0, node=node, model=MODEL, backend=BACKEND, **given)

    def make_kind(self, plan: ReplicaPlan) -> TextEngine:
        """Return an engine of the kind with its text, not started."""
        made: object = self.spec.make.load()(plan)
        lacking = [name for name in ("start", "stop", "submit", "health") if not hasattr(made, name)]
        assert not lacking, broken(f"it gives {made!r}, which has no {', '.join(lacking)}", KIND)
        return TextEngine(made, self.decode)  # type: ignore[arg-type]  # it has the methods

    def decode(self, tokens: Any) -> str:  # noqa: ANN401 -- a sequence of numbers
        """Return the text of tokens."""
        return "".join(f"<{token}>" for token in tokens)

    @asynccontextmanager
    async def serving(self, node: LocalNode, **fields: Any) -> AsyncIterator[TextEngine]:  # noqa: ANN401 - as above
        """Start a replica over ``node``, and stop it in the end."""
        engine = self.make_kind(self.make_plan(node, **fields))
        async with self.listening(node):
            await within(self.patience_s, engine.start(), "start hangs", START)
            try:
                yield engine
            finally:
                await within(self.patience_s, engine.stop(), "stop hangs", STOP)

    @asynccontextmanager
    async def listening(self, node: LocalNode) -> AsyncIterator[None]:
        """Let the worker join within this context."""
        await node.registry.start()
        try:
            yield
        finally:
            await node.kill()
            await node.registry.stop()

    async def check_answer(self, engine: TextEngine, prompt: Prompt = (1, 2, 3)) -> None:
        """Check that the replica gives the tokens of its backend."""
        found, expected = (await self.ask(engine, prompt)).tokens(), TOY.continuation(prompt, self.length)
        assert found == expected, broken(f"it gives {found}, and its backend {expected}", KIND)

    async def until(self, condition: Callable[[], bool], fault: str, promise: str) -> None:
        """Wait until ``condition`` holds."""
        await within(self.patience_s, _look(condition), fault, promise)

    @in_loop
    async def test_replica_gives_the_tokens_of_its_backend_and_tells_of_loading(self) -> None:
        """It answers several requests at the same time, as the backend does, and its progress is heard."""
        heard: list[str] = []
        node = self.make_node()
        async with self.serving(node, progress=lambda task, *_: heard.append(task)) as engine:
            await asyncio.gather(*[self.check_answer(engine, prompt) for prompt in self.prompts])
            assert engine.info.num_layers == len(TOY.layers), broken(f"it is {engine.info}", KIND)
            assert heard or not node.num_started, broken("no progress was heard", HEARD)

    @in_loop
    async def test_lost_worker_ends_what_has_begun_and_is_started_again(self) -> None:
        """A worker that is killed costs the requests that have begun, and nothing else, however often."""
        losses: list[str] = []
        node = self.make_node()
        async with self.serving(node, on_lost=losses.append) as engine:
            for number in range(1, 3 if node.num_started else 0):
                reading = await self._begin(engine)
                await node.kill()
                finish = (await within(self.patience_s, reading, "a stream did not end", BEGUN))[-1].finish
                assert finish is not None, broken("a stream ended without a finish", BEGUN)
                assert finish.reason == "error", broken(f"a lost request ended with {finish}", BEGUN)
                await self.until(lambda: engine.health().state == "ready", "it is not ready again", AGAIN)
                assert node.num_started == number + 1, broken(f"{node.num_started} workers were started", AGAIN)
                assert len(losses) == number, broken(f"it has told of {losses}", LOST)
                await self.check_answer(engine)

    @in_loop
    async def test_replica_takes_no_request_while_its_worker_is_away(self) -> None:
        """Requests are refused, so that they go to another replica or wait; none is lost without a word."""
        node = self.make_node()
        async with self.serving(node) as engine:
            if not node.num_started:
                return
            node.make = _refuse  # it cannot start again
            await node.kill()
            await self.until(lambda: engine.health().state == "starting", "it does not notice the loss", AGAIN)
            with expect(Unavailable, "a request while there is no worker", AGAIN):
                engine.submit(self.make_request())
            assert isinstance(engine, Admitting)
            node.make = lambda _: make_toy_engine(TOY)
            await self.until(lambda: engine.health().state == "ready", "it tries only once", AGAIN)
            await self.check_answer(engine)

    @in_loop
    async def test_model_that_cannot_be_opened_is_an_error_and_leaves_no_worker(self) -> None:
        """The reason is that of the backend."""
        node = self.make_node(_refuse)
        engine = self.make_kind(self.make_plan(node))
        async with self.listening(node):
            with expect(ParallaxError, "a start with a model that cannot be opened", START) as caught:
                await within(self.patience_s, engine.start(), "start hangs", START)
            assert "no kernel" in str(caught.error), broken(f"it says {caught.error}, not the reason", START)
            assert not node.pid, broken("the worker is left", START)
            await within(self.patience_s, engine.stop(), "stop hangs", STOP)

    @in_loop
    async def test_other_weights_are_refused(self) -> None:
        """A worker whose model differs from the server's is not used."""
        node = self.make_node()
        node.parts["layers.0"] = "others"
        engine = self.make_kind(self.make_plan(node, weights=WeightsCheck(lambda: {"layers.0": "ours"})))
        async with self.listening(node):
            if self.service is None:
                return
            with expect(ParallaxError, "a start with other weights than the server's", WEIGHTS):
                await within(self.patience_s, engine.start(), "start hangs", START)
            assert not node.pid, broken("the worker is left", START)

    @in_loop
    async def test_stop_ends_every_stream_and_the_worker(self) -> None:
        """No stream waits for ever, and no process is left."""
        node = self.make_node()
        engine = self.make_kind(self.make_plan(node))
        async with self.listening(node):
            await within(self.patience_s, engine.start(), "start hangs", START)
            reading = await self._begin(engine)
            await within(self.patience_s, engine.stop(), "stop hangs", STOP)
            deltas = await within(self.patience_s, reading, "a stream did not end", STOP)
            assert deltas[-1].finish is not None, broken("a stream ended without a finish", STOP)
            assert not node.pid, broken("the worker is left", STOP)

    async def _begin(self, engine: TextEngine) -> asyncio.Task[list[Delta]]:
        """Submit a long request, and return the task that reads it once it has a delta."""
        deltas: list[Delta] = []
        stream = engine.submit(self.make_request(max_tokens=self.long_length))
        reading = asyncio.create_task(_read(stream, deltas))
        await self.until(lambda: bool(deltas), "a request gets no token", KIND)
        return reading


def _refuse(_: EnginePlan) -> TokenEngine:
    raise Unsupported("no kernel", "build it")


async def _read(stream: Stream, deltas: list[Delta]) -> list[Delta]:
    async for delta in stream:
        deltas.append(delta)  # noqa: PERF401 -- others look at it meanwhile
    return deltas


async def _look(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- nothing tells of what it waits for
        await asyncio.sleep(LOOK_S)
