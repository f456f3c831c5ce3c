"""The services of models, over engines of a toy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from starlette.testclient import TestClient

from parallax_core.api import BackendSpec, EngineReady, Event, Ref, RequestBegan, RequestEnded, Stage, StagePlan
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.contracts.event import StageLoss
from parallax_core.contracts.parser import Content, ParserSpec, Piece, Reasoning
from parallax_core.deploy.deployment import Deployment
from parallax_core.deploy.executors import LocalStages
from parallax_core.deploy.fixed import FixedReplicas
from parallax_core.deploy.services import ServiceMaker
from parallax_core.engine.limits import Limits
from parallax_core.models.output_parser import OutputParser
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.events.delivery import EventBus
from parallax_core.node.events.requests import NO_EVENTS
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.server.app import make_app
from parallax_core.server.body_messages import BodyRequest, ParsedBody, ParserTraits
from parallax_core.server.body_reader import BodyReader
from parallax_core.server.drain import Drain
from parallax_core.server.options import ServerOptions
from parallax_core.server.quota import Quota
from parallax_core.server.served_models import ServedModels
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import Toy
from parallax_policies.routing import RoundRobin
from tests.unit.deploy.readers import LocalMaker
from tests.unit.server.dialects import BODIES, TARGETS, make_plugins
from tests.unit.tinymodel import TEMPLATE, write, write_model

TOY = Toy(layers=("full", "window"), vocab=257)
QUICK = ServerOptions(tokenizer_processes=1)
BODY: dict[str, Any] = {"prompt": "hello", "max_tokens": 6, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6, "temperature": 0}
RECORD = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")


class ToyBackend:
    """Opens stages of the toy, the first of them with faults."""

    context: ClassVar[int] = 64
    faults: ClassVar[list[Fault]] = []

    def open_stage(self, plan: StagePlan) -> Stage:
        del plan
        stage = TOY.open(num_pages=80, context=self.context)
        faults = tuple(self.faults)
        self.faults.clear()
        return FaultStage(stage, *faults) if faults else stage


class StopParser:
    """Everything before the first full stop is reasoning."""

    def __init__(self) -> None:
        self._reasons = True

    def feed(self, text: str) -> Sequence[Piece]:
        kind = Reasoning if self._reasons else Content
        self._reasons = self._reasons and "." not in text
        return [kind(text)]

    def finish(self) -> Sequence[Piece]:
        return []


SPEC = ParserSpec(name="stop", summary="", factory=Ref("x:X"), reasoning_end=".", finds_calls=True)
PARSER = OutputParser(SPEC, StopParser)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path)


def make_deployment(folder: Path, model_id: str = "toy", **fields: Any) -> Deployment:
    """Return a deployment of the toy; ``fields`` are further ones of it."""
    reference = Ref[Any](f"{__name__}:ToyBackend")
    offer = Offer(BackendSpec(name="toy", summary="integers", probe=reference, factory=reference), RECORD)
    stages = LocalStages(plugins=PluginHost([]), offers=(offer,), plan=StagePlan(model=folder))
    usual = Deployment(
        model_id=model_id,
        folder=folder,
        text=ModelTokenizer(folder),
        stages=stages,
        pipeline=PipelineOptions(),
        topology=ParallelConfig(),
        routing=RoundRobin(),
    )
    return replace(usual, **fields)


class Server:
    """A server in this process, whose services were made by one maker."""

    def __init__(
        self, kind: type[ServiceMaker], options: ServerOptions, event_bus: EventBus, deployments: Sequence[Deployment]
    ) -> None:
        self.models = ServedModels(quota=Quota(options), bodies=TARGETS)
        maker = kind(self.models, options, event_bus)
        for each in deployments:
            self.models.add_loading(each.model_id, each.model_id, FixedReplicas(each, maker).first)
        self.app = make_app(self.models, options, Drain(), make_plugins())
        self.client = TestClient(self.app)

    def complete(self, model: str = "toy", **fields: Any) -> Any:
        return self.client.post("/v1/completions", json={**BODY, "model": model, **fields})


@contextmanager
def serving(
    *deployments: Deployment,
    kind: type[ServiceMaker] = LocalMaker,
    options: ServerOptions = QUICK,
    event_bus: EventBus | None = None,
) -> Iterator[Server]:
    """Serve models with services of a maker of that kind."""
    server = Server(kind, options, event_bus or EventBus([]), deployments)
    with server.client as client:
        portal = client.portal
        assert portal is not None
        portal.call(server.models.start)
        try:
            yield server
        finally:
            portal.call(server.models.stop)
            portal.call(server.app.state.dialects.close)


def expect(folder: Path, prompt: str = "hello", length: int = 6) -> str:
    """Return the answer of the toy to a completion."""
    text = ModelTokenizer(folder)
    tokens = TOY.continuation(text.encode(prompt), length)
    assert not text.stop_ids & set(tokens), "it does not end by itself"
    return text.decode(tokens)


def make_bus(told: list[Event]) -> EventBus:
    return EventBus([(RECORD, told.append)])


def test_each_service_answers_for_its_model(folder: Path) -> None:
    with serving(make_deployment(folder), make_deployment(folder, "other"), kind=ServiceMaker) as server:
        for model in ("toy", "other"):
            reply = server.complete(model).json()
            assert (reply["model"], reply["choices"][0]["text"]) == (model, expect(folder))
        refusal = server.complete(max_tokens=ToyBackend.context)
        assert (refusal.status_code, str(ToyBackend.context) in refusal.text) == (400, True), refusal.text
        described = server.client.get("/v1/models").json()["data"]
        lengths = {each["id"]: each["max_model_len"] for each in described}
        assert lengths == dict.fromkeys(("toy", "other"), ToyBackend.context)


def test_services_of_one_maker_share_limits_metrics_and_kept_responses(folder: Path) -> None:
    options = replace(QUICK, max_per_minute=2)
    with serving(make_deployment(folder), make_deployment(folder, "other"), options=options) as server:
        ask = {"model": "toy", "input": "hello", "max_output_tokens": 6, "temperature": 0}
        kept = server.client.post("/v1/responses", json=ask)
        assert kept.status_code == 200, kept.text
        after = {**ask, "model": "other", "previous_response_id": kept.json()["id"]}
        assert server.client.post("/v1/responses", json=after).status_code == 200
        assert [server.complete(model).status_code for model in ("toy", "other")] == [429, 429]
        metrics = server.client.get("/metrics").text
        assert 'parallax_steps_total{model="toy"' in metrics
        assert 'parallax_steps_total{model="other"' in metrics


def test_parser_of_the_model_reaches_its_answers(folder: Path) -> None:
    with serving(make_deployment(folder), make_deployment(folder, "parsed", parser=PARSER)) as server:
        plain, parsed = (
            server.client.post("/v1/chat/completions", json={**CHAT, "model": model}).json()["choices"][0]["message"]
            for model in ("toy", "parsed")
        )
        assert "." not in plain["content"]
        assert (plain.get("reasoning"), parsed["reasoning"]) == (None, plain["content"])


async def test_processes_read_with_the_defaults_and_the_parser_of_the_model(folder: Path) -> None:
    write_model(folder, "{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE)
    write(folder, "generation_config.json", temperature=0.2, max_new_tokens=7)
    deployment = make_deployment(folder, text=ModelTokenizer(folder, "off"), parser=PARSER)
    service, _ = ServiceMaker(ServedModels(bodies=TARGETS), QUICK, EventBus([])).make(deployment, list)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {"model": "toy", "messages": CHAT["messages"], "seed": 1, "tools": [tool]}
    ask = BodyRequest(kind="chat", body=json.dumps(body).encode())
    try:
        await service.reader.start()
        found = await service.reader.read(ask)
    finally:
        await service.reader.stop()
    assert found == BodyReader(deployment.text, "toy", BODIES, ParserTraits.of(SPEC)).answer(ask)
    assert isinstance(found.content, ParsedBody), "without a parser, there would be no tools"
    assert found.content.request.default_max_tokens is None


async def test_options_of_the_server_and_limits_of_the_engine_bound_the_readers(folder: Path) -> None:
    options = ServerOptions(tokenizer_processes=3, max_body_bytes=2**27)
    pipeline = PipelineOptions(limits=Limits(max_running=4000, max_waiting=3000))
    deployment = make_deployment(folder, pipeline=pipeline)
    service, _ = ServiceMaker(ServedModels(), options, EventBus([])).make(deployment, list)
    limits = service.reader._limits  # type: ignore[attr-defined]
    assert (limits.num_processes, limits.max_waiting, limits.max_waiting_bytes) == (3, 7000, 2**29)


async def test_longest_sequence_is_that_of_the_engines_there_are_now(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines: list[PipelineEngine] = []
    deployment = make_deployment(folder)
    service, router = ServiceMaker(ServedModels(), QUICK, EventBus([])).make(deployment, lambda: engines)
    assert service.find_max_length() == 0
    for context, longest in ((64, 64), (32, 32), (48, 32)):
        monkeypatch.setattr(ToyBackend, "context", context)
        [engine] = deployment.make_engines()
        assert isinstance(engine, PipelineEngine)
        engines.append(engine)
        assert service.find_max_length() == min([64, 32][: len(engines) - 1], default=0), "it is not ready"
        await engine.start()
        assert (service.find_max_length(), router._max_length()) == (longest, longest)
    await asyncio.gather(*(engine.stop() for engine in engines))


def test_observers_are_told_of_requests_and_losses(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyBackend, "faults", [Fault("die", at=2)])
    told: list[Event] = []
    event_bus = make_bus(told)
    with serving(make_deployment(folder), event_bus=event_bus) as server:
        assert server.complete().json()["choices"][0]["text"] == expect(folder), "it goes on after the loss"
    event_bus.close(20)
    assert [type(event) for event in told] == [EngineReady, RequestBegan, StageLoss, RequestEnded]
    assert {event.model for event in told} == {"toy"}
    [loss] = [event for event in told if isinstance(event, StageLoss)]
    assert (loss.replica, loss.reason.startswith("a stage was lost")) == (0, True)
    assert told[0].at <= loss.at <= told[-1].at


def test_without_observers_nothing_watches_requests(folder: Path) -> None:
    for told, is_plain in (([], True), ([make_bus([])], False)):
        [event_bus] = told or [EventBus([])]
        _, router = ServiceMaker(ServedModels(), QUICK, event_bus).make(make_deployment(folder), list)
        assert (router.events is NO_EVENTS) == is_plain
        event_bus.close(20)
