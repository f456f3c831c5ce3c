"""A stage that a worker has loaded."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from parallax_core.contracts.stage import StageInfo
from parallax_core.node.worker.runtime import StageKey, StageRuntime
from parallax_core.node.worker.thread import StageThread
from parallax_core.wire.membership import Assign

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedStage:
    """A loaded stage, with the thread and the runtime that run it."""

    assign: Assign
    thread: StageThread
    runtime: StageRuntime
    info: StageInfo

    def is_usable_for(self, assign: Assign) -> bool:
        """Return whether it has loaded what ``assign`` asks for, and is not lost."""
        return _describe(self.assign) == _describe(assign) and not self.runtime.is_lost

    def take(self, assign: Assign) -> None:
        """Become the stage of ``assign``, which may have another number; no step may be running."""
        self.assign, self.runtime.key = assign, StageKey(assign.lease, assign.stage)


def _describe(assign: Assign) -> tuple[object, ...]:
    return (
        assign.lease,
        assign.backend,
        assign.model,
        (assign.start, assign.stop),
        assign.dtype,
        assign.device,
        (assign.memory_fraction, assign.max_batch_tokens, assign.max_running),
    )


def note_end(closing: asyncio.Future[None]) -> None:
    """Log why a stage could not be closed."""
    if not closing.cancelled() and (error := closing.exception()) is not None:
        logger.warning("stage not closed cleanly: %s: %s", type(error).__name__, error)
