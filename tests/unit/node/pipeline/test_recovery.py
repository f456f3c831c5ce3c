from __future__ import annotations

import asyncio
from dataclasses import replace as replace_fields

import pytest

from parallax_core.api import Delta, Progress, Stage, Stream, Unavailable
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node import backoff
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.routing.router import Router
from parallax_core.testing.node import open_toy
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import (
    TOY,
    Node,
    answer,
    ask,
    check_answer,
    joined,
    make_executor,
    open_registry,
    running,
    soon,
    until,
)

NAMES = ("attic", "cellar", "kitchen")


async def lose(engine: PipelineEngine, node: Node) -> None:
    """Have a stage lost, and wait until the engine knows."""
    await node.kill()
    await until(lambda: engine.health().state != "ready")


async def replace(registry: NodeRegistry, name: str) -> Node:
    return await Node(name).join(registry.address)


async def test_pauses_grow_while_it_is_lost_without_a_token_and_end_when_a_node_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0, 0.01, 0.02))
    nodes, said = [Node(name) for name in NAMES], list[str]()
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        for loss in range(6):
            await lose(engine, nodes[1])
            await until(lambda: "wait for a node" in engine.health().reason)
            said.append(engine.health().reason)
            nodes[1] = await replace(registry, f"cellar+{loss}")
            await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        assert "stage 1 of 3, on node 'cellar+4', is lost" in said[-1]
        assert [location.restarts for location in engine.locations()] == [0, 6, 0]
        await nodes[1].kill()


async def test_failures_since_the_last_token_are_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0, 3600.0))
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        for loss in range(3):
            await check_answer(engine, length=3)
            await lose(engine, nodes[1])
            nodes[1] = await replace(registry, f"cellar+{loss}")
            await until(lambda: engine.health().state == "ready")
        await lose(engine, nodes[1])
        await until(lambda: engine.health().reason.endswith("trying again in 3600 s"))


async def test_pipeline_that_cannot_be_built_says_why_and_is_built_when_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0, 0.05))
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        await lose(engine, nodes[1])
        spare = Node("spare")
        spare.open = fail
        await spare.join(registry.address)
        await until(lambda: engine.health().reason.endswith("trying again in 0.05 s"))
        assert engine.health().reason.startswith("the pipeline cannot be built: stage 1 on node 'spare': the model")
        with pytest.raises(Unavailable, match="the engine is starting") as caught:
            engine.submit(ask((1,), 3))
        assert "no such kernel" in caught.value.hint
        await until(lambda: len(spare.loads) > 2)
        assert [location.restarts for location in engine.locations()] == [0, 0, 0]
        spare.open = open_toy
        await until(lambda: engine.health().state == "ready")
        assert [location.restarts for location in engine.locations()] == [0, 1, 0]
        await check_answer(engine)
        await spare.kill()


def fail(assign: Assign, progress: Progress) -> Stage:
    del assign, progress
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("wait_s", [0.0, 0.002, 0.01, 0.05, 0.15])
async def test_stop_while_it_heals_leaves_nothing(wait_s: float) -> None:
    before = asyncio.all_tasks()
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes):
        engine = PipelineEngine(make_executor(registry), lambda tokens: "x" * len(tokens))
        await soon(engine.start())
        asking = asyncio.create_task(answer(engine, (1, 2), 100))
        await until(lambda: bool(engine.stats()[0].output_tokens))
        await nodes[1].kill()
        await asyncio.sleep(wait_s)
        await soon(engine.stop())
        _, finish = await asking
        assert finish.reason in {"error", "aborted"}
    await until(lambda: asyncio.all_tasks() == before)


async def test_requests_of_a_lost_replica_go_on_on_the_other_one_at_once() -> None:
    nodes, options = [Node(name) for name in (*NAMES, "garage")], PipelineOptions(releases_requests=lambda: True)
    async with open_registry() as registry, joined(registry, *nodes):
        engines = [
            PipelineEngine(make_executor(registry, 2), lambda tokens: "x" * len(tokens), options) for _ in range(2)
        ]
        router = Router(engines, LeastPendingTokens(), lambda: 256)
        await soon(router.start())
        lost = engines[0].locations()[1].node
        begun = [ask((number, 2), 100) for number in range(4)]
        waiting = [asyncio.create_task(read(router.submit(request))) for request in begun]
        await until(lambda: all(engine.stats()[0].output_tokens > 2 for engine in engines))
        requests = [ask((number, 1), 40) for number in range(12)]
        reading = [asyncio.create_task(read(router.submit(request))) for request in requests]
        await next(node for node in nodes if node.name == lost).kill()
        for request, end in zip(requests, await soon(asyncio.gather(*reading)), strict=True):
            assert end == (TOY.continuation(request.prompt, 40), "length")
        assert (engines[0].health().state, router.health().state) == ("starting", "ready")
        for request, end in zip(begun, await soon(asyncio.gather(*waiting)), strict=True):
            assert end == (TOY.continuation(request.prompt, 100), "length")
        assert engines[0].health().state == "starting"
        spare = await replace(registry, "spare")
        await until(lambda: engines[0].health().state == "ready")
        await check_answer(engines[0])
        await soon(router.stop())
        await spare.kill()


async def test_requests_end_as_their_time_is_over_while_it_heals_and_only_then() -> None:
    nodes, options = [Node(name) for name in NAMES], PipelineOptions(recovery_timeout_s=1.0)
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry), plan=options) as engine,
    ):
        hasty = replace_fields(ask((1, 2), 200), timeout_s=0.5)
        streams = [engine.submit(each) for each in (ask((1, 1), 200), ask((1, 3), 200), hasty)]
        gone, *reading = [asyncio.create_task(read_all(stream)) for stream in streams]
        await until(lambda: engine.stats()[0].output_tokens > 5)
        await lose(engine, nodes[1])
        streams[0].close()
        assert (await soon(gone))[-1].finish is None
        ends = [(await soon(each))[-1].finish for each in reading]
        assert [end.reason for end in ends if end] == ["timeout", "timeout"]
        assert [end.message[:61] for end in ends if end] == [
            "a stage was lost, and was not replaced within 1 s: stage 1 of",
            "timed out after 0.5 seconds",
        ]
        assert [end.prompt_tokens for end in ends if end] == [2, 2]
        assert engine.health().state == "starting", "the repair goes on"
        spare = await replace(registry, "spare")
        await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        assert engine.stats()[0].running == 0
        await spare.kill()


async def test_request_cancelled_while_it_heals_is_not_computed_again() -> None:
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        streams = [engine.submit(ask((number, 1), 100)) for number in range(2)]
        reading = [asyncio.create_task(read_all(stream)) for stream in streams]
        await until(lambda: engine.stats()[0].output_tokens > 5)
        await lose(engine, nodes[2])
        streams[0].close()
        spare = await replace(registry, "spare")
        await until(lambda: engine.health().state == "ready")
        assert engine.stats()[0].running + engine.stats()[0].waiting == 1
        kept = await soon(reading[1])
        assert [token for delta in kept for token in delta.tokens] == TOY.continuation((1, 1), 100)
        await spare.kill()


async def test_streams_go_on_when_stages_are_lost_again_and_again_while_it_heals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backoff, "WAITS_S", (0.0, 0.01))
    nodes = [Node(name) for name in NAMES]
    async with open_registry() as registry, joined(registry, *nodes), running(make_executor(registry)) as engine:
        asking = asyncio.create_task(answer(engine, (4, 2), 200))
        for loss in range(10):
            before = engine.stats()[0].output_tokens
            await until(lambda before=before: engine.stats()[0].output_tokens > before)  # type: ignore[misc]
            await lose(engine, nodes[loss % 3])
            nodes[loss % 3] = await replace(registry, f"spare-{loss}")
        tokens, finish = await soon(asking)
        assert (tokens, finish.reason) == (TOY.continuation((4, 2), 200), "length")
        for node in nodes:
            await node.kill()


async def read_all(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]


async def read(stream: Stream) -> tuple[list[int], str]:
    deltas = [delta async for delta in stream]
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish.reason
