"""Stages that nobody runs yet, and what somebody has to do about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry

logger = logging.getLogger(__name__)

FIRST_S = 1.0
"""After so long it is said for the first time what is missing,"""
AGAIN_S = 15.0
"""and then every so often."""


def describe_unassigned(vacant: Sequence[StageAssignment], num_roles: int, registry: NodeRegistry) -> str:
    """Return which stages wait for nodes started by hand, and how to start one; nothing if none does."""
    if not vacant:
        return ""
    names = ", ".join(map(_name, vacant))
    wanted = dict.fromkeys(_write_command(role, registry.invitation) for role in vacant)
    text = f"{len(vacant)} of {num_roles} stages wait for a node: {names}; run: {' and '.join(wanted)}"
    useless = [f"{each.name!r} ({', '.join(each.join.backends) or 'no backend'})" for each in registry.waiting]
    return f"{text}; of no use for that: {', '.join(useless)}" if useless else text


def _name(role: StageAssignment) -> str:
    layers = f"layers {role.layers.start}-{role.layers.stop}" if role.layers else "the whole"
    return f"stage {role.stage} with {layers} of {role.model}"


def _write_command(role: StageAssignment, command: str) -> str:
    return f"{command} --backend {role.backend}" if role.backend else command


@asynccontextmanager
async def reminding(text: Callable[[], str]) -> AsyncIterator[None]:
    """Log ``text`` every so often, as long as there is any."""

    async def remind() -> None:
        wait_s = FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            if said := text():
                logger.warning("%s", said)
            wait_s = AGAIN_S if said else FIRST_S

    task = asyncio.create_task(remind())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
