from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.base.errors import ParallaxError, PeerLost
from parallax_core.base.ids import Epoch
from parallax_core.contracts.progress import Unit
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.channel import Channel
from parallax_core.node.executor.weights_check import DifferentWeights, WeightsCheck
from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.joined_node import HeldLayers, JoinedNode
from parallax_core.node.membership.loading import (
    LinkFailed,
    LoadingHung,
    NodeRefused,
    check_weights,
    load_stage,
    receive_reply,
)
from parallax_core.wire.membership import Join, Leave, Linked, Loading, Ready, Refusal
from parallax_core.wire.messages import Failure, Heartbeat, Result
from tests.unit.node.cluster import MODEL, TOY, soon
from tests.unit.node.membership.nodes import taken_node

ATTEMPT = Epoch(5)
STAGE = 1
LAYERS = LayerRange(1, 3)
ROLE = StageAssignment(stage=STAGE, layers=LAYERS, model=MODEL)
INFO = TOY.open(LAYERS, num_pages=8).info
READY = Ready(ATTEMPT, STAGE, INFO)


async def load(node: JoinedNode, channel: Channel, messages: Sequence[Any], **given: Any) -> tuple[Any, list[Any]]:
    """Assign the stage to a node that answers with these messages; return its info, and the reports of progress."""
    reports: list[Any] = []

    def report(task: str, done: int, total: int | None, unit: Unit = "bytes") -> None:
        assert node.loading is not None
        reports.append((task, done, total, unit))

    loading = asyncio.create_task(load_stage(node, replace(ROLE, **given), ATTEMPT, report))
    assert await soon(channel.receive()) == ROLE.assign(ATTEMPT)
    for message in messages:
        await channel.send(message)
    return await soon(loading), reports


async def test_stage_is_loaded_with_reports_of_its_progress() -> None:
    steps = [Loading(ATTEMPT, STAGE, "weights", 3, 9), Loading(ATTEMPT, STAGE, "warm", 1, -1, "items")]
    async with taken_node() as (node, channel):
        node.loaded = HeldLayers("another", LayerRange(0, 1))
        info, reports = await load(node, channel, [*steps, READY])
        assert info == INFO
        assert reports == [("weights", 3, 9, "bytes"), ("warm", 1, None, "items")]
        assert (node.loading, node.loaded) == (None, HeldLayers(MODEL, LAYERS))


@pytest.mark.parametrize(
    "late",
    [
        Ready(Epoch(ATTEMPT - 1), STAGE, INFO),
        Ready(ATTEMPT, STAGE + 1, INFO),
        Refusal(Epoch(ATTEMPT - 1), STAGE, "no"),
        Heartbeat(ATTEMPT, -1, STAGE),
        Result(ATTEMPT, 0, STAGE),
        Failure(ATTEMPT, 0, STAGE, "no"),
        Leave(ATTEMPT),
    ],
)
async def test_message_of_what_it_did_before_is_passed_over(late: Any) -> None:
    async with taken_node() as (node, channel):
        assert (await load(node, channel, [late, READY]))[0] == INFO


@pytest.mark.parametrize("lacks_leases", [False, True])
async def test_refusal_is_told_with_the_stage_and_the_node(lacks_leases: bool) -> None:
    refusal = Refusal(ATTEMPT, STAGE, "too large", "take less", lacks_leases=lacks_leases)
    async with taken_node() as (node, channel):
        with pytest.raises(NodeRefused, match="stage 1 on node 'attic': too large") as caught:
            await load(node, channel, [Loading(ATTEMPT, STAGE, "weights", 3, 9), refusal])
        error = caught.value
        assert (error.node, error.hint, error.lacks_leases) == ("attic", "take less", lacks_leases)
        assert (node.loading, node.loaded) == (None, None)


async def test_node_that_reports_nothing_counts_as_hung() -> None:
    async with taken_node() as (node, channel):
        with pytest.raises(LoadingHung, match=r"it has reported no loading progress for 0\.01 s") as caught:
            await load(node, channel, [], load_timeout_s=0.01)
        assert (caught.value.node, node.loading) == ("attic", None)


async def test_node_that_says_what_nobody_asked_for_is_lost() -> None:
    async with taken_node() as (node, channel):
        with pytest.raises(PeerLost, match="node 'attic' sent a Join, which is unexpected here"):
            await load(node, channel, [Join("inprocess://x", (), "here", 0)])
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_answer_of_a_link_is_a_reply() -> None:
    linked = Linked(ATTEMPT, STAGE, "relay")
    async with taken_node() as (node, channel):
        await channel.send(linked)
        assert await soon(receive_reply(node, ROLE, ATTEMPT)) == linked


async def test_node_with_other_weights_is_told_and_turned_away() -> None:
    weights = WeightsCheck(lambda: {"model.layers.1": "a"})
    async with taken_node() as (node, channel):
        await check_weights(node, ROLE, replace(INFO, weights_parts={"model.layers.1": "a"}), ATTEMPT, weights)
        with pytest.raises(DifferentWeights, match="stage 1 on node 'attic' has other weights than") as caught:
            await check_weights(node, ROLE, replace(INFO, weights_parts={"model.layers.1": "b"}), ATTEMPT, weights)
        assert caught.value.node == "attic"
        refusal = await soon(channel.receive())
        assert refusal == Refusal(ATTEMPT, STAGE, caught.value.message, caught.value.hint)
        with pytest.raises(PeerLost):
            await soon(channel.receive())


async def test_failed_link_is_the_one_that_was_not_reached() -> None:
    async with taken_node("b") as (node, _), taken_node("a") as (before, _), taken_node("c") as (after, _):

        def find(unreached: str, one: JoinedNode | None, other: JoinedNode | None) -> ParallaxError:
            refusal = Refusal(ATTEMPT, STAGE, "no way", "try another", unreached=unreached)
            error = LinkFailed.find(node, one, other, refusal)
            assert (error.message, error.hint) == ("no way", "try another")
            return error

        def ends(error: ParallaxError) -> tuple[str, str]:
            assert isinstance(error, LinkFailed)
            return error.ends

        assert ends(find("c", before, after)) == ("b", "c")
        assert ends(find("", before, after)) == ("a", "b")
        assert ends(find("x", before, None)) == ("a", "b")
        assert type(find("", None, after)) is ParallaxError
        assert ends(find("c", None, after)) == ("b", "c")
