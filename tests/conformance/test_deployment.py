"""The kit for kinds of deployments passes a good kind, and catches a fault of each sort."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import DeploymentSpec, Ref, ServerPlan, ServerRequest, WantedNodes
from parallax_core.builtin.plugin import parallax_register_deployments
from parallax_core.testing.deployment import DeploymentConformance
from tests.conformance.harness import find_failures, list_tests

LISTEN = "tcp://127.0.0.1:0"


async def start(nodes: WantedNodes) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*nodes.command)


async def end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def keep(nodes: WantedNodes) -> None:
    while True:
        process = await start(nodes)
        try:
            await process.wait()
        finally:
            await end(process)


@asynccontextmanager
async def launch(nodes: WantedNodes) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(keep(nodes)) for _ in range(nodes.num_nodes)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def launch_once(nodes: WantedNodes) -> AsyncIterator[None]:
    processes = [await start(nodes) for _ in range(nodes.num_nodes)]
    try:
        yield
    finally:
        for process in processes:
            await end(process)


STRAYS: list[subprocess.Popen[bytes]] = []
"""Nodes that a launcher has left running."""


@asynccontextmanager
async def launch_for_ever(nodes: WantedNodes) -> AsyncIterator[None]:
    async with launch(replace(nodes, num_nodes=nodes.num_nodes - 1) if nodes.num_nodes > 1 else nodes):
        if nodes.num_nodes > 1:
            STRAYS.append(subprocess.Popen(nodes.command))  # noqa: ASYNC220 -- it starts at once
        yield


def plan(request: ServerRequest) -> ServerPlan:
    return request.plan(place="on nodes of this test", launch=launch, listen=LISTEN)


def plan_without_address(request: ServerRequest) -> ServerPlan:
    return request.plan(launch=launch)


def plan_nothing(request: ServerRequest) -> Any:
    request.plan(launch=launch, listen=LISTEN)


def plan_other_model(request: ServerRequest) -> ServerPlan:
    return request.plan(model="another", launch=launch, listen=LISTEN)


def plan_unknown_key(request: ServerRequest) -> ServerPlan:
    return request.plan(launch=launch, listen=LISTEN, stage=2)


def plan_without_place(request: ServerRequest) -> ServerPlan:
    return request.plan(place=" ", launch=launch, listen=LISTEN)


def plan_once(request: ServerRequest) -> ServerPlan:
    return request.plan(launch=launch_once, listen=LISTEN)


def plan_for_ever(request: ServerRequest) -> ServerPlan:
    return request.plan(launch=launch_for_ever, listen=LISTEN)


def select_all(settings: object) -> bool:
    return settings is not None


def make_kit(planned: Callable[[ServerRequest], Any], selects: str = "") -> type[DeploymentConformance]:
    class Kit(DeploymentConformance):
        spec = DeploymentSpec(
            name="mine",
            summary="nodes of this test",
            plan=Ref(f"{__name__}:{planned.__name__}"),
            selects=Ref(f"{__name__}:{selects}") if selects else None,
        )

    return Kit


class TestLauncher(make_kit(plan)):  # type: ignore[misc]
    """A kind with a launcher passes."""


class TestFixed(DeploymentConformance):
    """Core's kind passes."""

    [spec] = parallax_register_deployments()


SAYS, LISTENS = "test_plan_says_what_is_served_and_where", "test_launcher_has_a_server_that_listens"
SELECTED = "test_kind_is_not_selected_by_settings_that_do_not_concern_it"
STARTS, AGAIN = "test_launcher_starts_each_node_and_ends_it", "test_node_that_ends_is_started_again"
EVERY = {SAYS, LISTENS, STARTS, AGAIN}


@pytest.mark.parametrize(
    ("planned", "selects", "tests", "words"),
    [
        (plan_nothing, "", {SAYS}, "None is no plan"),
        (plan_other_model, "", {SAYS}, "the plan is of the model 'another'"),
        (plan_without_place, "", {SAYS}, "the place of the plan is empty"),
        (plan_unknown_key, "", EVERY, "the plan changes stage, and [serve] has no such key"),
        (plan_without_address, "", {LISTENS}, "a server that does not listen"),
        (plan_for_ever, "", {STARTS}, "1 nodes run after their server"),
        (plan, "select_all", {SELECTED}, "a server with no settings is taken over"),
    ],
)
def test_kit_catches_a_fault(
    planned: Callable[[ServerRequest], Any], selects: str, tests: set[str], words: str
) -> None:
    found = find_failures(make_kit(planned, selects))
    while STRAYS:
        STRAYS.pop().wait()  # the kit has killed it
    assert found.keys() == tests
    assert all(words in fault for fault in found.values())


def test_kit_catches_a_node_that_is_not_started_again() -> None:
    kit = make_kit(plan_once)
    kit.patience_s = 5.0
    assert find_failures(kit).keys() == {AGAIN}


def test_every_test_of_the_kit_is_shown_to_catch_something() -> None:
    assert set(list_tests(DeploymentConformance)) == {*EVERY, SELECTED}
