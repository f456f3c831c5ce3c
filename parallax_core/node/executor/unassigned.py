"""Describes the stages that have no node yet, and reminds the operator to start one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from parallax_core.node.membership.assignment import StageAssignment
from parallax_core.node.membership.registry import NodeRegistry

logger = logging.getLogger(__name__)

FIRST_S = 1.0
"""Seconds before the first reminder."""
AGAIN_S = 15.0
"""Seconds between later reminders."""


def describe_unassigned(unassigned: Sequence[StageAssignment], num_stages: int, registry: NodeRegistry) -> str:
    """Return which stages wait for nodes started by hand, and the command that starts one; empty if none waits."""
    if not unassigned:
        return ""
    names = ", ".join(map(_name, unassigned))
    commands = dict.fromkeys(_write_command(assignment, registry.invitation) for assignment in unassigned)
    text = f"{len(unassigned)} of {num_stages} stages wait for a node: {names}; run: {' and '.join(commands)}"
    unsuitable = [f"{each.name!r} ({', '.join(each.join.backends) or 'no backend'})" for each in registry.waiting]
    return f"{text}; not suitable: {', '.join(unsuitable)}" if unsuitable else text


def _name(assignment: StageAssignment) -> str:
    layers = f"layers {assignment.layers.start}-{assignment.layers.stop}" if assignment.layers else "the whole"
    return f"stage {assignment.stage} with {layers} of {assignment.model}"


def _write_command(assignment: StageAssignment, command: str) -> str:
    return f"{command} --backend {assignment.backend}" if assignment.backend else command


@asynccontextmanager
async def reminding(text: Callable[[], str]) -> AsyncIterator[None]:
    """Log ``text`` from time to time, as long as it is not empty."""

    async def remind() -> None:
        wait_s = FIRST_S
        while True:
            await asyncio.sleep(wait_s)
            if reminder := text():
                logger.warning("%s", reminder)
            wait_s = AGAIN_S if reminder else FIRST_S

    task = asyncio.create_task(remind())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
