"""The nodes that a launcher starts for stages that stay the same."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from parallax_core.api import WantedNodes
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.additions import Additions
from parallax_core.deploy.fixed import read_plan, read_target
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


@pytest.mark.parametrize(("given", "seconds"), [(None, None), (50.0, 0.05), (0.0, math.inf)])
def test_wanted_time_between_tokens_is_in_milliseconds(given: float | None, seconds: float | None) -> None:
    assert read_target(ServeSettings(model="org/model", target_itl=given)) == seconds


@dataclass(eq=False)
class Stream:
    """A stream that its client does not read."""

    unread: int = 0
    is_cut: bool = False

    def cut(self, reason: str) -> None:
        del reason
        self.is_cut = True


def test_settings_reach_the_pipeline() -> None:
    settings = ServeSettings(
        model="org/model", backend="any", listen="tcp://h:0", max_unread=4, step_timeout=0, recovery_timeout=7.0
    )
    options = read_plan(settings, PluginHost.discover()).pipeline
    assert (options.step_timeout_s, options.recovery_timeout_s) == (None, 7.0)
    within, beyond = Stream(), Stream()
    options.backlog.add(within, 2**20)
    options.backlog.add(beyond, 2**20 + 1)
    assert (within.is_cut, beyond.is_cut) == (False, True)
