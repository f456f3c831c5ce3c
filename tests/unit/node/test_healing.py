from __future__ import annotations

import asyncio

import pytest

from parallax_core.api import Progress, Stage, Stream
from parallax_core.builtin.routing import LeastPendingTokens
from parallax_core.node import healing
from parallax_core.node.muster import Muster
from parallax_core.node.pipeline import PipelineEngine
from parallax_core.node.router import Router
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import (
    TOY,
    Node,
    answer,
    ask,
    check_answer,
    joined,
    make_troop,
    mustered,
    running,
    soon,
    until,
)

NAMES = ("attic", "cellar", "kitchen")


async def lose(engine: PipelineEngine, node: Node) -> None:
    """Have a stage lost, and wait until the engine knows."""
    await node.kill()
    await until(lambda: engine.health().state != "ready")


async def replace(muster: Muster, name: str) -> Node:
    return await Node(name).join(muster.address)


async def test_pipeline_that_is_lost_again_and_again_without_a_token_is_given_up() -> None:
    nodes = [Node(name) for name in NAMES]
    async with mustered() as muster, joined(muster, *nodes), running(make_troop(muster)) as engine:
        for loss in range(healing.MOST_LOSSES):
            await lose(engine, nodes[1])
            nodes[1] = await replace(muster, f"cellar+{loss}")
            await until(lambda: engine.health().state == "ready")
        await lose(engine, nodes[1])
        await until(lambda: engine.health().state == "failed")
        assert "stage 1 of 3, on node 'cellar+4', is lost" in engine.health().reason


async def test_tokens_in_between_show_that_there_is_hope() -> None:
    nodes = [Node(name) for name in NAMES]
    async with mustered() as muster, joined(muster, *nodes), running(make_troop(muster)) as engine:
        for loss in range(healing.MOST_LOSSES + 2):
            await check_answer(engine, length=3)
            await lose(engine, nodes[1])
            nodes[1] = await replace(muster, f"cellar+{loss}")
            await until(lambda: engine.health().state == "ready")
        await check_answer(engine)
        await nodes[1].kill()


async def test_pipeline_that_cannot_be_built_again_is_given_up_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(healing, "WAITS_S", (0.0, 0.01))
    nodes = [Node(name) for name in NAMES]
    async with mustered() as muster, joined(muster, *nodes), running(make_troop(muster)) as engine:
        await lose(engine, nodes[1])
        spare = Node("spare")
        spare.open = fail
        await spare.join(muster.address)
        await until(lambda: engine.health().state == "failed")
        assert engine.health().reason.startswith("the pipeline could not be built again: stage 1 on node 'spare'")
        assert len(spare.loads) == 2
        await spare.kill()


def fail(assign: Assign, progress: Progress) -> Stage:
    del assign, progress
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("wait_s", [0.0, 0.002, 0.01, 0.05, 0.15])
async def test_stop_while_it_heals_leaves_nothing(wait_s: float) -> None:
    before = asyncio.all_tasks()
    nodes = [Node(name) for name in NAMES]
    async with mustered() as muster, joined(muster, *nodes):
        engine = PipelineEngine(make_troop(muster), lambda tokens: "x" * len(tokens))
        await soon(engine.start())
        asking = asyncio.create_task(answer(engine, (1, 2), 100))
        await until(lambda: bool(engine.stats()[0].output_tokens))
        await nodes[1].kill()
        await asyncio.sleep(wait_s)
        await soon(engine.stop())
        _, finish = await asking
        assert finish.reason in {"error", "aborted"}
    await until(lambda: asyncio.all_tasks() == before)


async def test_requests_without_an_answer_move_to_the_other_replica() -> None:
    nodes = [Node(name) for name in (*NAMES, "garage")]
    async with mustered() as muster, joined(muster, *nodes):
        engines = [PipelineEngine(make_troop(muster, 2), lambda tokens: "x" * len(tokens)) for _ in range(2)]
        router = Router(engines, LeastPendingTokens(), lambda: 256)
        await soon(router.start())
        lost = engines[0].posts()[1].node
        requests = [ask((number, 1), 40) for number in range(12)]
        reading = [asyncio.create_task(read(router.submit(request))) for request in requests]
        await next(node for node in nodes if node.name == lost).kill()
        ends = await soon(asyncio.gather(*reading))
        for request, (tokens, reason) in zip(requests, ends, strict=True):
            assert tokens == TOY.continuation(request.prompt, 40)[: len(tokens)]
            assert reason == "length" or tokens, "it had no answer, and could have had one from the other replica"
        assert (engines[0].health().state, router.health().state) == ("starting", "ready")
        spare = await replace(muster, "spare")
        await until(lambda: engines[0].health().state == "ready")
        await check_answer(engines[0])
        await soon(router.stop())
        await spare.kill()


async def read(stream: Stream) -> tuple[list[int], str]:
    deltas = [delta async for delta in stream]
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish.reason
