"""The stage that a worker has loaded, and how it is loaded, kept and closed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from parallax_core.base.errors import BackendFailed, ParallaxError, StageHung, StageLost
from parallax_core.base.machine import return_memory
from parallax_core.contracts.stage import StageInfo
from parallax_core.node.channel import Channel
from parallax_core.node.worker.load_progress import LoadProgressReporter
from parallax_core.node.worker.node_services import NodeServices
from parallax_core.node.worker.runtime import StageRuntime
from parallax_core.node.worker.shared_layers import SharedLayers, StageSlot, describe_layers
from parallax_core.node.worker.thread import StageThread, note_end
from parallax_core.wire.membership import Assign, Loading

RESET_S = 60.0
"""Seconds to wait for a running step before its stage is used again."""
REPLACED_HINT = "start this node again; a service manager or `parallax serve` does so by itself"
CLOSE_S = 1.5
"""Seconds to wait for a running step when the stage is closed."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedStage:
    """A loaded stage, with its place, and the runtime that runs it there."""

    assign: Assign
    slot: StageSlot
    runtime: StageRuntime
    info: StageInfo
    """What the head is told of it."""

    @property
    def thread(self) -> StageThread:
        """The thread that runs it."""
        return self.slot.thread

    def is_usable_for(self, assign: Assign) -> bool:
        """Return whether it has loaded what ``assign`` asks for, and is not lost."""
        return _describe(self.assign) == _describe(assign) and not self.runtime.is_lost

    def take(self, assign: Assign) -> None:
        """Become the stage of ``assign``, which may have another number; no step may be running."""
        self.assign, self.runtime.number = assign, assign.stage


class StageHolder:
    """Loads the stage of a session, and keeps it for the next head that assigns the same one."""

    def __init__(self, layers: SharedLayers, services: NodeServices) -> None:
        """Load with ``layers``; while something is loaded, ``services`` pause."""
        self.layers = layers
        """Loads it, and the stages of leases."""
        self._services = services
        self.held: LoadedStage | None = None
        """The loaded stage, or None."""

    async def reuse(self, assign: Assign) -> LoadedStage | None:
        """Return the loaded stage, emptied of sequences, if it fits ``assign``; raises as `reset` does."""
        if (held := self.held) is None or not held.is_usable_for(assign):
            return None
        await self.reset()
        held.take(assign)
        return held

    async def load(self, channel: Channel, assign: Assign) -> LoadedStage:
        """Load the stage of ``assign`` in place of the one that is loaded, and report progress over ``channel``.

        Raises:
            ParallaxError: if it cannot be loaded.
        """
        await self._unload()
        await self._services.pause()
        slot = await self.layers.acquire(assign)
        async with LoadProgressReporter(channel, partial(Loading, assign.epoch, assign.stage)) as reporter:
            runtime = StageRuntime(lambda: slot.open(reporter), assign.stage)
            try:
                info = await slot.thread.call(runtime.open)
            except asyncio.CancelledError:
                slot.thread.call(runtime.close).add_done_callback(lambda _: slot.give_back())
                raise
            except Exception as error:
                slot.give_back()
                if isinstance(error, ParallaxError):
                    raise
                logger.exception("stage cannot be opened")
                message = f"the model could not be loaded: {type(error).__name__}: {error}"
                raise BackendFailed(message, "the log of the node has the traceback") from error
            limited = self.layers.limit(info)
            self.held = held = LoadedStage(assign, slot, runtime, limited)  # before anything else is waited for
        return held

    async def reset(self) -> None:
        """Drop all sequences of the loaded stage, if any.

        Raises:
            StageLost: if it cannot, or its running step hangs.
        """
        if (held := self.held) is None:
            return
        done, _ = await asyncio.wait([held.thread.call(held.runtime.reset)], timeout=RESET_S)
        if not done:
            logger.critical("stage %d hangs here:\n%s", held.assign.stage, held.thread.find_place())
            message = f"stage {held.assign.stage} has computed a step for longer than {RESET_S:g} s"
            raise StageHung(message, REPLACED_HINT)
        if held.runtime.is_lost:
            raise StageLost(f"stage {held.assign.stage} is lost: {held.runtime.fault}", REPLACED_HINT)

    async def release(self, *, keeps_layers: bool = False) -> None:
        """Close the stage, and layers that no lease uses any more, and return their memory to the system.

        With ``keeps_layers``, the layers stay.
        """
        await self._unload()
        if not keeps_layers:
            await self.layers.trim()

    async def prepare(self) -> None:
        """Get ready for a head that begins anew: drop sequences, or the whole lease, whose share another may need.

        Raises:
            StageLost: if sequences cannot be dropped; see `reset`.
        """
        await self.reset()
        if self.held is not None and self.held.slot.is_shared:
            await self._end()

    async def close(self, *, keeps_layers: bool = False) -> None:
        """Close the stage, and layers that no lease uses, waiting for at most `CLOSE_S` each. Idempotent.

        With ``keeps_layers``, the layers stay.
        """
        await self._end()
        if not keeps_layers:
            await self.layers.close_unused()

    async def _unload(self) -> None:
        """Close the stage, and return its memory to the system, unless other leases use its layers."""
        held = self.held
        await self._end()
        if held is not None and not held.slot.is_shared:
            return_memory()

    async def _end(self) -> None:
        held, self.held = self.held, None
        self._services.resume()
        if held is not None:
            closing = held.thread.call(held.runtime.close)
            closing.add_done_callback(lambda _: held.slot.give_back())
            closing.add_done_callback(note_end)
            await asyncio.wait([closing], timeout=CLOSE_S)


def _describe(assign: Assign) -> tuple[object, ...]:
    return (assign.start, assign.stop), assign.memory_share, describe_layers(assign)
