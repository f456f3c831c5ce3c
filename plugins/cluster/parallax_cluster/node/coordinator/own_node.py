"""Keeps worker processes of this machine running, as nodes that join."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from parallax_core.api import ParallaxError
from parallax_core.api.node import Backoff
from parallax_core.node.membership.supervisor import WorkerSupervisor

logger = logging.getLogger(__name__)

OWN_NODE = "local/0"
"""The node of the coordinator's machine; no machine that joins is called ``local``."""
STEADY_S = 60.0
"""Seconds after which a process that ends is started again at once."""


@asynccontextmanager
async def running_worker(supervisor: WorkerSupervisor, node: str = OWN_NODE) -> AsyncIterator[None]:
    """Run the process of ``node``, and start it again whenever it ends; end it at the end."""
    keeping = asyncio.create_task(keep_worker(supervisor, node))
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await supervisor.end(node)


async def keep_worker(supervisor: WorkerSupervisor, node: str) -> None:
    """Start the process of ``node``, and start it again whenever it ends, until cancelled."""
    loop, backoff, reason = asyncio.get_running_loop(), Backoff(lambda _: None), "it is to be started"
    while True:
        await backoff.wait(reason)
        begun = loop.time()
        try:
            await supervisor.restart(node)
            reason = f"the worker of this machine has ended: {await supervisor.wait_end(node)}"
        except ParallaxError as error:
            reason = error.message
        logger.warning("%s", reason)
        if loop.time() - begun > STEADY_S:
            backoff.reset()
