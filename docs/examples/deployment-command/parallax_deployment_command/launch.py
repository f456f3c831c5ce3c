"""Starts a process for each node that a server waits for, again whenever one ends, and ends them with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from parallax_core.api import ParallaxError, ServerPlan, ServerRequest, WantedNodes
from parallax_deployment_command.options import CommandOptions

LOOPBACK = "tcp://127.0.0.1:0"

logger = logging.getLogger(__name__)


def plan(request: ServerRequest) -> ServerPlan:
    """Return the plan of a server whose nodes the command starts."""
    options = request.read_section(CommandOptions)
    write_command(options, 0, ("parallax", "worker"))  # a mistake is told before anything starts
    listen = request.settings.listen or LOOPBACK
    return request.plan(place="on nodes that a command starts", launch=partial(launch, options), listen=listen)


def write_command(options: CommandOptions, number: int, command: tuple[str, ...]) -> list[str]:
    """Return the command that starts a node.

    Raises:
        ParallaxError: if the user's is not understood.
    """
    try:
        words = shlex.split(options.start.format(number=number, command=shlex.join(command)))
    except (ValueError, KeyError, IndexError) as error:
        message = f"start in [command] is not understood: {error}"
        raise ParallaxError(message, "write it as: ssh -tt gpu{number} {command}") from error
    if not words:
        raise ParallaxError("start in [command] is empty", "write it as: ssh -tt gpu{number} {command}")
    return words


@asynccontextmanager
async def launch(options: CommandOptions, nodes: WantedNodes) -> AsyncIterator[None]:
    """Run the nodes while a server runs."""
    commands = [write_command(options, number, nodes.command) for number in range(nodes.num_nodes)]
    tasks = [asyncio.create_task(_keep(options, command)) for command in commands]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep(options: CommandOptions, command: list[str]) -> None:
    told = ""
    while True:
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL)
        except OSError as error:  # such as a program that is not there yet
            if told != str(error):
                logger.warning("no node is started: %s", told := str(error))
        else:
            try:
                await process.wait()
            finally:
                await _end(process, options.grace_s)
        await asyncio.sleep(options.again_s)


async def _end(process: asyncio.subprocess.Process, grace_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        process.kill()
        await process.wait()
