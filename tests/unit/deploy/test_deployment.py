from __future__ import annotations

import asyncio
import json
import math
import types
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from parallax_core.api import (
    BackendSpec,
    ModelFolder,
    Ref,
    Request,
    RequestId,
    Sampling,
    Stage,
    StagePlan,
    Stream,
    TransportPlan,
)
from parallax_core.base.ids import lease_node
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.cluster.placement.parallel import ParallelConfig, parse_layers
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.progress import silent
from parallax_core.contracts.status import ReplicaLimits
from parallax_core.deploy.deployment import Deployment, find_max_length
from parallax_core.deploy.executors import LocalStages, RemoteStages
from parallax_core.deploy.fixed import plan_stages, read_limits, read_plan, read_target
from parallax_core.engine.limits import Limits
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.spares import SparePool
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.testing.fault import Fault, FaultStage
from parallax_core.testing.toy import Toy
from parallax_policies.routing import RoundRobin
from tests.support.node_services import equip
from tests.unit.node.cluster import MODEL, Node, joined, make_roles, until
from tests.unit.tinymodel import write_model

TOY = Toy(layers=("full", "full", "window"))
BROKEN = "broken"
"""The device on which the first step fails."""


class ToyBackend:
    """Opens stages of the toy, and notes what it is asked for."""

    plans: ClassVar[list[StagePlan]] = []

    def open_stage(self, plan: StagePlan) -> Stage:
        self.plans.append(plan)
        stage = TOY.open(plan.layers, num_pages=40)
        return FaultStage(stage, Fault("die")) if plan.device == BROKEN else stage


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_deployment(folder: Path, topology: ParallelConfig) -> Deployment:
    (folder / "config.json").write_text("{}")
    spec = BackendSpec(
        name="toy",
        summary="integers",
        probe=Ref[Any](f"{__name__}:ToyBackend"),
        factory=Ref[Any](f"{__name__}:ToyBackend"),
    )
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    text: Any = types.SimpleNamespace(decode=decode)
    stage = StagePlan(model=folder, dtype="float32")
    offers = (Offer(spec, record),) * topology.num_stages
    return Deployment(
        model_id="toy",
        folder=folder,
        text=text,
        stages=LocalStages(plugins=PluginHost([]), offers=offers, plan=stage),
        pipeline=PipelineOptions(),
        topology=topology,
        routing=RoundRobin(),
    )


async def collect(stream: Stream) -> list[int]:
    return [token async for delta in stream for token in delta.tokens]


async def test_stages_go_where_the_topology_puts_them(tmp_path: Path) -> None:
    ToyBackend.plans.clear()
    devices = ("a:0", "a:1", "b:0", "b:1")
    layers = parse_layers("0-2,2-3")
    deployment = make_deployment(
        tmp_path, ParallelConfig(data_parallel=2, num_stages=2, layers=layers, devices=devices)
    )
    asked = [
        Request(id=RequestId(str(seed)), prompt=(seed,), max_tokens=6, sampling=Sampling(temperature=0))
        for seed in range(4)
    ]
    async with deployment.running() as engine:
        answers = await asyncio.gather(*(collect(engine.submit(request)) for request in asked))
    assert answers == [TOY.continuation(request.prompt, 6) for request in asked]
    assert {(plan.device, plan.layers) for plan in ToyBackend.plans} == set(zip(devices, layers * 2, strict=True))
    assert {plan.dtype for plan in ToyBackend.plans} == {"float32"}


async def test_deployment_without_a_topology_opens_the_whole_model_once(tmp_path: Path) -> None:
    ToyBackend.plans.clear()
    [engine] = make_deployment(tmp_path, ParallelConfig()).make_engines()
    await engine.start()
    await engine.stop()
    assert [(plan.layers, plan.device) for plan in ToyBackend.plans] == [(None, "")]


def test_limits_of_a_user_reach_the_head_and_the_stages(tmp_path: Path) -> None:
    settings = ServeSettings(max_running=500, max_waiting=9, max_batch_tokens=1000, memory_fraction=0.8)
    limits, plan = read_limits(settings), plan_stages(settings, ModelFolder(path=tmp_path, ref=""), silent)
    assert (limits.max_running, limits.max_waiting, limits.max_batch_tokens) == (500, 9, 1000)
    assert (plan.max_running, plan.max_batch_tokens, plan.memory_fraction) == (500, 1000, 0.8)


def test_target_is_in_seconds_and_without_one_any_time_will_do() -> None:
    found = [read_target(ServeSettings(target_itl=each)) for each in (None, 0, 50)]
    assert found == [None, math.inf, 0.05]


def test_limits_are_left_to_the_stages_where_a_user_says_none(tmp_path: Path) -> None:
    settings = ServeSettings()
    assert read_limits(settings) == Limits()
    assert plan_stages(settings, ModelFolder(path=tmp_path, ref=""), silent) == StagePlan(model=tmp_path)


async def test_limits_are_told_once_the_stages_are_there(tmp_path: Path) -> None:
    [engine] = make_deployment(tmp_path, ParallelConfig()).make_engines()
    before = engine.limits
    await engine.start()
    limits = engine.limits
    await engine.stop()
    assert (before, limits) == (None, ReplicaLimits(max_running=4, max_waiting=256, max_batch_tokens=8))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a model of four layers, whose weights are empty."""
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    folder = tmp_path / "four"
    folder.mkdir()
    write_model(folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 257}
    further = {"num_key_value_heads": 2, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(kind | sizes | further))
    return folder


def test_deployment_is_what_its_plan_asks_for(model: Path, tmp_path: Path) -> None:
    settings = ServeSettings(model=str(model), backend="mlx", stages=2, max_running=3)
    plan = read_plan(settings, PluginHost.prepare(Config()))
    found = plan.prepare(tmp_path)
    assert (found.model_id, found.folder, found.topology.num_stages) == ("four", model, 2)
    assert found.pipeline.limits.max_running == 3
    assert found.pipeline.grammars is found.text.grammars
    assert (found.routing, found.listening) == (plan.routing, None)
    assert found.text.encode("a") == (ord("a") - ord("!"),)


async def test_longest_sequence_is_one_that_every_replica_can_serve_that_was_ready() -> None:
    openers = [partial(TOY.open, num_pages=40, context=context) for context in (64, 32, 48)]
    engines = [PipelineEngine(LocalExecutor([opener]), decode) for opener in openers]
    assert (find_max_length([]), find_max_length(engines)) == (0, 0)
    for engine in (engines[0], engines[2]):
        await engine.start()
    assert find_max_length(engines) == 48
    for engine in engines:
        await engine.stop()


async def test_loss_is_told_with_the_rank_of_its_replica(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    deployment = make_deployment(tmp_path, ParallelConfig(data_parallel=2, devices=("sound", BROKEN)))
    engines = deployment.make_engines(lambda rank, reason: told.append((rank, reason)))
    request = Request(id=RequestId("1"), prompt=(1,), max_tokens=2, sampling=Sampling(temperature=0))
    for engine, expected in zip(engines, (TOY.continuation((1,), 2), []), strict=True):
        await engine.start()
        assert await collect(engine.submit(request)) == expected
        await engine.stop()
    assert [rank for rank, _ in told] == [1]


@asynccontextmanager
async def open_remote(
    folder: Path, num_spares: int = 0, *, starts: bool = True, **given: Any
) -> AsyncIterator[Deployment]:
    """Yield a deployment whose stages are on nodes that join; its registry is started unless ``starts`` is false."""
    registry = equip(NodeRegistry(InProcessTransport(TransportPlan(node="head", listen="inprocess://")), "head"))
    if starts:
        await registry.start()
    try:
        stages = RemoteStages(
            model=MODEL,
            backends=("",),
            plan=StagePlan(model=folder),
            registry=registry,
            supervisor=None,
            heartbeat_s=0.05,
            spares=SparePool(num_spares, registry) if num_spares else None,
        )
        yield replace(make_deployment(folder, ParallelConfig()), stages=stages, **given)
    finally:
        await registry.stop()


def get_spares(deployment: Deployment) -> SparePool:
    assert isinstance(deployment.stages, RemoteStages)
    assert deployment.stages.spares is not None
    return deployment.stages.spares


async def test_nodes_without_a_stage_wait_and_those_of_spares_say_what_they_have(tmp_path: Path) -> None:
    async with open_remote(tmp_path, num_spares=1) as deployment:
        registry = deployment.registry
        assert registry is not None
        assert (deployment.list_nodes(), deployment.list_waiting()) == ([], [])
        names = ("attic", "cellar")
        nodes = [Node(name) for name in (*names, lease_node("attic", 1))]
        async with joined(registry, *nodes):
            assert [each.name for each in deployment.list_nodes()] == list(names)
            assert [(each.name, each.stage) for each in deployment.list_waiting()] == [(name, None) for name in names]
            [role] = make_roles(1)
            spares = get_spares(deployment)
            spares.cover("a pipeline", {role: 1})
            await until(lambda: all(spare.is_loaded for spare in spares.spares))
            assert [each.name for each in deployment.list_nodes()] == list(names)
            spare, other = deployment.list_waiting()
            assert {spare.name, other.name} == set(names)
            assert (spare.stage, spare.layers, spare.is_loaded) == (0, role.layers, True)
            assert (other.stage, other.is_loaded) == (None, False)
            await spares.stop()


async def test_services_of_the_head_get_the_connections_of_clients(tmp_path: Path) -> None:
    clients: Any = object()
    make_deployment(tmp_path, ParallelConfig()).share_api(clients)
    async with open_remote(tmp_path) as deployment:
        assert deployment.registry is not None
        deployment.share_api(clients)
        assert deployment.registry.clients is clients


async def test_nodes_join_within_the_context_and_the_spares_stop_with_it(tmp_path: Path) -> None:
    heads: list[NodeRegistry] = []
    listening: Any = object()

    @asynccontextmanager
    async def listen(registry: NodeRegistry) -> AsyncIterator[Any]:
        heads.append(registry)
        yield listening
        assert registry.joined  # it is stopped later

    async with make_deployment(tmp_path, ParallelConfig()).nodes_joining() as found:
        assert found is None
    async with open_remote(tmp_path, num_spares=1, starts=False, listening=listen) as deployment:
        registry, spares = deployment.registry, get_spares(deployment)
        assert registry is not None
        node = Node("attic")
        async with deployment.nodes_joining() as found:
            assert (found, heads) == (listening, [registry])
            await node.join(registry.address)
            await until(lambda: bool(registry.joined))
            spares.cover("a pipeline", dict.fromkeys(make_roles(1), 1))
            await until(lambda: all(spare.is_loaded for spare in spares.spares))
        assert (spares.spares, list(registry.joined)) == ((), [])
        await node.kill()
