"""The kind held to the contract by Parallax's own kit, and to what it says of itself."""

from __future__ import annotations

import asyncio

import pytest

from parallax_core.api import ParallaxError, WantedNodes
from parallax_core.testing.deployment import DeploymentConformance
from parallax_deployment_command.launch import launch, write_command
from parallax_deployment_command.options import CommandOptions
from parallax_deployment_command.plugin import parallax_register_deployments


class TestCommand(DeploymentConformance):
    sections = (CommandOptions(again_s=0.01, grace_s=5.0),)

    [spec] = parallax_register_deployments()


def test_command_of_the_user_gets_that_of_the_node() -> None:
    options = CommandOptions(start="ssh gpu{number} {command}")
    assert write_command(options, 3, ("parallax", "worker")) == ["ssh", "gpu3", "parallax", "worker"]


@pytest.mark.parametrize("start", ["ssh {host} {command}", "ssh 'gpu", "", "ssh {0}"])
def test_command_that_is_not_understood_is_refused(start: str) -> None:
    with pytest.raises(ParallaxError, match=r"start in \[command\]"):
        write_command(CommandOptions(start=start), 0, ("parallax",))


def test_command_that_is_not_there_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        nodes = WantedNodes(num_nodes=1, address="tcp://127.0.0.1:1", command=("no-such-program",))
        async with launch(CommandOptions(again_s=0.001), nodes):
            await asyncio.sleep(0.1)

    asyncio.run(run())
    [record] = caplog.records
    assert "no node is started: " in record.message
    assert "no-such-program" in record.message
