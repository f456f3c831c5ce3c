"""The nodes that a launcher starts for stages that stay the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from parallax_core.api import WantedNodes
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.fixed import read_plan
from parallax_core.plugins.host import PluginHost

REGISTRY = SimpleNamespace(address="tcp://h:1", invitation="parallax worker --transport 'x y' --connect tcp://h:1")


async def test_launcher_gets_the_number_of_nodes_and_the_command_that_starts_one() -> None:
    asked: list[WantedNodes | None] = []

    @asynccontextmanager
    async def launch(nodes: WantedNodes) -> AsyncIterator[None]:
        asked.append(nodes)
        yield
        asked.append(None)

    settings = ServeSettings(model="org/model", backend="any", listen="tcp://h:0", stages=2, data_parallel=2, spares=1)
    plan = read_plan(settings, PluginHost.discover(), Additions(launch=launch))
    deployment: Any = SimpleNamespace(registry=REGISTRY)
    async with plan.launch(deployment):
        command = ("parallax", "worker", "--transport", "x y", "--connect", "tcp://h:1")
        assert asked == [WantedNodes(num_nodes=5, address="tcp://h:1", command=command)]
    assert asked[1:] == [None]


async def test_without_a_launcher_no_node_is_started() -> None:
    plan = read_plan(ServeSettings(model="org/model", backend="any", listen="tcp://h:0"), PluginHost.discover())
    deployment: Any = SimpleNamespace(registry=REGISTRY)
    async with plan.launch(deployment):
        assert (plan.num_nodes, plan.place) == (1, "on machines that join")
