"""Stages of different weights are not served together: in one pipeline, in several, and where one replaces another."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.weights_version import digest_parts, identify_weights
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import Stage
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.executor.weights_check import OWN, DifferentWeights, WeightsCheck, describe_parts
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supply import NodeSupply
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.testing.model import write_checkpoint
from parallax_core.testing.node import open_toy
from parallax_core.wire.membership import Assign
from tests.unit.node.cluster import TOY, Node, check_answer, joined, make_roles, open_registry, running, soon, until

COUNT = len(TOY.layers)
NAMES = ["embed", *(f"layers.{layer}.{name}" for layer in range(COUNT) for name in "ab"), "norm"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "original", {}, dict.fromkeys(NAMES, (2, 3)))


@pytest.fixture
def tune(tmp_path: Path, original: Path) -> Callable[[str], Path]:
    """Make models that differ from the original in one number of one tensor."""

    def make(tensor: str) -> Path:
        folder = tmp_path / f"tuned-{tensor}"
        shutil.copytree(original, folder)
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[len(data) - 24 * (len(NAMES) - NAMES.index(tensor))] ^= 1
        path.write_bytes(data)
        return folder

    return make


def open_stage(folder: Path, assign: Assign, progress: Progress) -> Stage:
    """Open a stage of the toy that states the weights in a folder, as a real one would."""
    stage = open_toy(assign, progress)
    found = identify_weights(StagePlan(model=folder), stage.info.layers, COUNT)
    stage.restate(weights_version=found.version, weights_parts=found.parts)
    return stage


def make_node(name: str, folder: Path) -> Node:
    node = Node(name)
    node.open = partial(open_stage, folder)
    return node


def make_executor(registry: NodeRegistry, weights: WeightsCheck, num_stages: int = 3) -> RemoteExecutor:
    return RemoteExecutor(make_roles(num_stages), NodeSupply(registry), weights=weights)


async def start(executor: RemoteExecutor) -> ParallaxError | None:
    """Start an engine, and return why it cannot."""
    engine = PipelineEngine(executor, lambda tokens: "x" * len(tokens))
    try:
        await soon(engine.start())
    except ParallaxError as error:
        return error
    finally:
        await soon(engine.stop())
    return None


async def test_nodes_of_the_same_weights_serve(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / "copy")
    nodes = [make_node("a", original), make_node("b", copy), make_node("c", original)]
    weights = WeightsCheck(partial(digest_parts, copy))
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry, weights)) as engine,
    ):
        await check_answer(engine)


@pytest.mark.parametrize(("tensor", "stage", "what"), [("layers.1.b", 1, "layers 1-2"), ("embed", 0, "embed")])
async def test_stage_of_other_weights_than_the_servers_is_refused_before_a_token_is_served(
    original: Path, tune: Callable[[str], Path], tensor: str, stage: int, what: str
) -> None:
    """Though no two stages have a layer in common."""
    folders = [original] * 3
    folders[stage] = tune(tensor)
    nodes = [make_node(name, folder) for name, folder in zip("abc", folders, strict=True)]
    async with open_registry() as registry, joined(registry, *nodes):
        error = await start(make_executor(registry, WeightsCheck(partial(digest_parts, original))))
        assert isinstance(error, DifferentWeights)
        who = f"stage {stage} on node {'abc'[stage]!r}"
        assert error.message == f"{who} has other weights than {OWN}: they differ in {what}"
        assert "parallax models rm" in error.hint
        await until(lambda: bool(nodes[stage].losses))
        assert "has other weights than" in nodes[stage].losses[0].message


async def test_layer_that_a_stage_does_not_run_does_not_matter(original: Path, tune: Callable[[str], Path]) -> None:
    nodes = [make_node("a", tune("layers.2.a")), make_node("b", original), make_node("c", original)]
    weights = WeightsCheck(partial(digest_parts, original))
    async with (
        open_registry() as registry,
        joined(registry, *nodes),
        running(make_executor(registry, weights)) as engine,
    ):
        await check_answer(engine)


async def test_ends_of_a_pipeline_are_compared_where_the_server_has_no_copy(
    original: Path, tune: Callable[[str], Path]
) -> None:
    nodes = [make_node("a", original), make_node("b", original), make_node("c", tune("embed"))]
    async with open_registry() as registry, joined(registry, *nodes):
        error = await start(make_executor(registry, WeightsCheck()))
    assert isinstance(error, DifferentWeights)
    assert "stage 2 on node 'c' has other weights than stage 0 on node 'a': they differ in embed" in error.message


async def test_replicas_are_compared_layer_by_layer(original: Path, tune: Callable[[str], Path]) -> None:
    """Though the second is cut elsewhere."""
    weights = WeightsCheck()
    nodes = [make_node(name, original) for name in "abc"]
    others = [make_node("d", original), make_node("e", tune("layers.2.a"))]
    async with open_registry() as one, joined(one, *nodes), running(make_executor(one, weights)):  # noqa: SIM117 -- too long
        async with open_registry("inprocess://other") as other, joined(other, *others):
            error = await start(make_executor(other, weights, 2))
    assert isinstance(error, DifferentWeights)
    assert "stage 1 on node 'e' has other weights than stage 2 on node 'c': they differ in layers 2-3" in error.message


async def test_node_of_other_weights_cannot_replace_a_lost_one_and_another_may(
    original: Path, tune: Callable[[str], Path]
) -> None:
    first, stranger, heir = make_node("a", original), make_node("b", tune("layers.0.a")), make_node("c", original)
    async with open_registry() as registry, joined(registry, first):
        async with running(make_executor(registry, WeightsCheck(), 1)) as engine:
            await check_answer(engine)
            await stranger.join(registry.address)
            await first.kill()
            await until(lambda: bool(stranger.losses))
            assert engine.health().state == "starting"
            await stranger.kill()
            await heir.join(registry.address)
            await until(lambda: engine.health().state == "ready")
            await check_answer(engine)
        await heir.kill()


def test_parts_are_described_as_layers_and_names() -> None:
    assert describe_parts(["m.layers.4", "m.layers.3", "m.layers.7"]) == "layers 3-5,7-8"
    names = [f"name{number}" for number in range(5)]
    assert describe_parts(["m.layers.0", *names]) == "layers 0-1 and name0 and name1 and name2 and 2 more"
    assert describe_parts(names[:4]) == "name0 and name1 and name2 and 1 more"
    assert describe_parts(names[:3]) == "name0 and name1 and name2"


async def test_own_copy_that_cannot_be_read_is_no_reason_to_refuse(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Mapping[str, str]:
        raise PermissionError("no such luck")

    check = WeightsCheck(fail)
    await check.check("one", {"layers.0": "x"})
    with pytest.raises(DifferentWeights, match="other has other weights than one: they differ in layers 0-1"):
        await check.check("other", {"layers.0": "y"})
    assert "is not compared: no such luck" in caplog.text


async def test_own_copy_is_read_once_for_all_that_wait_even_if_one_gives_up() -> None:
    calls = []

    def read() -> Mapping[str, str]:
        calls.append(1)
        return {"layers.0": "x"}

    check = WeightsCheck(read)
    first = asyncio.create_task(check.check("one", {"layers.0": "x"}))
    second = asyncio.create_task(check.check("other", {"layers.0": "y"}))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(DifferentWeights, match=OWN):
        await second
    assert calls == [1]


async def test_refused_statement_leaves_nothing_behind() -> None:
    check = WeightsCheck(lambda: {"layers.0": "x"})
    with pytest.raises(DifferentWeights):
        await check.check("one", {"layers.0": "y", "layers.1": "y"})
    await check.check("other", {"layers.0": "x", "layers.1": "x"})


async def test_stage_that_states_nothing_is_not_compared() -> None:
    await WeightsCheck(lambda: {"layers.0": "x"}).check("one", {})
