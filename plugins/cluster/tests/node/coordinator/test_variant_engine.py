"""Pipelines over nodes that load other files of a model: who takes over, and what becomes of answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.deploy.joined_model import JoinedModel
from parallax_cluster.model_variants import ModelVariants, Variant
from parallax_core.api import Delta, Finish, Progress, Stage
from parallax_core.testing.node import open_toy
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign
from tests.unit.deploy.joined import Cluster, Machine, check, open_cluster, places
from tests.unit.node.cluster import MODEL, TOY, ask, soon, step_slowly, until

OTHER = "org/other"
PROMPT = (1, 2, 3)
LENGTH = 40


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_cluster(tmp_path) as cluster:
        yield cluster


def open_either(assign: Assign, progress: Progress) -> Stage:
    """Open the toy, whichever files it is to be of."""
    return open_toy(msgspec.structs.replace(assign, model=MODEL), progress)


async def join(cluster: Cluster, name: str, memory_gb: float = 2.5, *, is_other: bool = False) -> Machine:
    machine = await cluster.join(name, memory_gb, backend="other" if is_other else "toy")
    machine.open = open_either
    return machine


async def load(cluster: Cluster, *, mixes: bool = True, goes_on: bool = False) -> JoinedModel:
    by_backend = {"other": Variant(OTHER)}
    variants = ModelVariants(model=MODEL, by_backend=by_backend, are_mixed=mixes, goes_on=goes_on)
    model = cluster.make("toy", variants=variants)
    await soon(model.start())
    return model


async def answer_over_loss(model: JoinedModel, machine: Machine) -> tuple[list[int], Finish]:
    """Return the tokens and the finish of an answer, in the midst of which a machine is killed."""
    deltas: list[Delta] = []

    async def read() -> None:
        async for delta in model.service.engine.submit(ask(PROMPT, LENGTH)):
            deltas.append(delta)
            if len(deltas) == 5:
                await machine.kill()

    await soon(read())
    assert deltas[-1].finish is not None
    return [token for delta in deltas for token in delta.tokens], deltas[-1].finish


def list_weights(model: JoinedModel) -> list[str]:
    [replica] = model.service.engine.describe()  # type: ignore[attr-defined]
    return [stage.weights for stage in replica.stages]


@pytest.mark.parametrize("is_first", [True, False])
async def test_pipeline_over_two_variants_serves_and_says_so(cluster: Cluster, is_first: bool) -> None:
    machines = [await join(cluster, name, is_other=(name == "a/1") == is_first) for name in ("a/1", "b/1")]
    model = await load(cluster)
    await check(model)
    assert {machine.loads[-1].model for machine in machines} == {MODEL, OTHER}
    assert sorted(list_weights(model)) == sorted([MODEL, OTHER])


async def test_variants_are_not_mixed_unless_that_is_asked_for(cluster: Cluster) -> None:
    await join(cluster, "a/1")
    await join(cluster, "b/1", is_other=True)
    variants = ModelVariants(model=MODEL, by_backend={"other": Variant(OTHER)})
    model = cluster.make("toy", variants=variants)
    model.waits = True
    starting, words = asyncio.create_task(model.start()), "holds the model by itself (--mix-weights lets machines"
    await until(lambda: words in model.coordinator.explain())
    await join(cluster, "c/1", is_other=True)
    await soon(starting)
    await check(model)
    assert set(places(model)) == {"b/1", "c/1"}
    assert set(list_weights(model)) == {OTHER}


@pytest.mark.parametrize("goes_on", [True, False])
async def test_node_with_the_same_files_takes_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)
    machines = {"a/1": await join(cluster, "a/1"), "b/1": await join(cluster, "b/1", is_other=True)}
    model = await load(cluster, goes_on=goes_on)
    await join(cluster, "d/1", is_other=True)
    await until(lambda: len(model.coordinator.plan.cluster.nodes) == 3)
    tokens, finish = await answer_over_loss(model, machines["b/1"])
    assert (tokens, finish.reason, finish.message) == (TOY.continuation(PROMPT, LENGTH), "length", "")
    assert set(places(model)) == {"a/1", "d/1"}


async def test_answer_ends_if_no_node_has_the_same_files(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)
    await join(cluster, "a/1")
    lost = await join(cluster, "b/1", is_other=True)
    model = await load(cluster)
    await join(cluster, "c/1")
    tokens, finish = await answer_over_loss(model, lost)
    assert tokens == TOY.continuation(PROMPT, LENGTH)[: len(tokens)]
    assert finish.reason == "error"
    assert finish.message.startswith("no other machine has the weights that this answer began with: it would go on by")
    await until(lambda: set(places(model)) == {"a/1", "c/1"} and model.service.engine.health().state == "ready")
    await check(model)


async def test_answer_goes_on_with_a_note_if_asked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyStage, "step", step_slowly)
    await join(cluster, "a/1")
    lost = await join(cluster, "b/1", is_other=True)
    model = await load(cluster, goes_on=True)
    await join(cluster, "c/1")
    tokens, finish = await answer_over_loss(model, lost)
    assert (tokens, finish.reason) == (TOY.continuation(PROMPT, LENGTH), "length")
    assert finish.message.startswith("computed by several weights, since a machine was lost: layers 0-")
    assert OTHER in finish.message
