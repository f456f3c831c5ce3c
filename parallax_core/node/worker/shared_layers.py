"""Opens the stages of a node; leases share layers, which are loaded once and run on one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from parallax_core.base.errors import BackendFailed, Unsupported
from parallax_core.base.machine import return_memory
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import SHARE_ROUNDING, LayerRange, Leasing, Stage, StageInfo
from parallax_core.node.worker.thread import StageThread, note_end
from parallax_core.wire.membership import Assign

RELEASE_S = 60.0
"""Seconds to wait until other stages have given back what a new one needs: their heads move as well."""
CLOSE_S = 1.5
"""Seconds to wait for a running step when layers are closed."""

OpenStage = Callable[[Assign, Progress], Stage]
"""Opens an assigned stage, or the layers that a lease of it needs; called on the thread that will run it."""
LayersKey = tuple[object, ...]
"""What layers are loaded for: they serve the leases that name the same."""


@dataclass(frozen=True, slots=True)
class StageSlot:
    """A place for a stage: the thread that is to run it, and how it is opened there."""

    thread: StageThread
    open: Callable[[Progress], Stage]
    """Opens the stage; called on the thread, again only after the stage was closed."""
    give_back: Callable[[], None]
    """Called on the event loop, once, after the stage was closed or could not be opened."""
    is_shared: bool = False
    """Whether other leases use its layers and its thread as well."""


class LoadedLayers:
    """Layers that leases share, on a thread of their own. Their stage belongs to the thread, and to no other layers."""

    def __init__(self, first: Assign, open_stage: OpenStage) -> None:
        """Load layers for leases such as ``first`` with ``open_stage``, once a lease is opened."""
        self.first = first
        """A lease of them, the latest."""
        self.thread = StageThread("parallax-layers")
        self.holder: Stage | None = None
        """None: they are not loaded."""
        self._open_stage = open_stage

    def lease(self, assign: Assign, progress: Progress) -> Stage:
        """Return a lease, loading the layers if that was not done yet; called on the thread."""
        holder = self.holder or self._open_stage(assign, progress)
        if not isinstance(holder, Leasing):
            holder.close()
            raise Unsupported("the backend of this node has no leases", "let the node be in one pipeline only")
        self.holder = holder
        return holder.lease(LayerRange(assign.start, assign.stop), assign.memory_share)

    def close(self) -> asyncio.Future[None]:
        """Close them on their thread, which ends then; called on the event loop, once."""
        closing = self.thread.call(self._close)
        closing.add_done_callback(note_end)
        self.thread.close()
        return closing

    def _close(self) -> None:
        holder, self.holder = self.holder, None
        if holder is not None:
            holder.close()


class SharedLayers:
    """The layers that a node has loaded for leases, and the leases of them. Belongs to one event loop.

    Layers stay loaded until others are needed, or a `trim` finds them unused.
    """

    def __init__(self, open_stage: OpenStage, max_context: int | None = None) -> None:
        """Open stages with ``open_stage``; see `StagePlan.leased` for what it opens for leases.

        Heads are told that a stage takes at most ``max_context`` tokens; None: as many as it says.
        """
        self._open_stage = open_stage
        self._max_context = max_context
        self._layers: LoadedLayers | None = None
        """The layers that are loaded, or about to be; None: none are."""
        self._closing: asyncio.Future[None] | None = None
        """The end of those that were there before; None: they are closed."""
        self._shares: dict[int, float] = {}
        """The share of memory of each lease, by a number."""
        self._own: set[StageThread] = set()
        """The threads of stages that share nothing: they have taken all memory."""
        self._last = 0
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()
        """Held while layers are unloaded, and while a place is looked for."""
        self._are_unwanted = False
        """Whether to unload the layers once no lease uses them."""
        self._trimming: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> Assign | None:
        """A lease of the layers that are loaded; None: none are."""
        layers = self._layers
        return layers.first if layers is not None and layers.holder is not None else None

    def limit(self, info: StageInfo) -> StageInfo:
        """Return what heads are told of a stage."""
        if self._max_context is None or self._max_context >= info.context_length:
            return info
        return replace(info, context_length=self._max_context)

    async def acquire(self, assign: Assign) -> StageSlot:
        """Return a place for an assigned stage, once it has room beside the stages that there are.

        Raises:
            BackendFailed: if stages or layers that are in its way are not given back.
        """
        key = describe_layers(assign) if assign.memory_share else None
        async with self._lock:
            await self._await_room(key, assign.memory_share)
            if (key is None or key != self._key) and not await self._unload(RELEASE_S):
                message = f"the layers that this node had were not closed within {RELEASE_S:g} s"
                raise BackendFailed(message, "a step of theirs may hang; the node's log says more")
            return self._lend(assign) if key is not None else self._make_own(assign)

    async def trim(self) -> None:
        """Unload layers once no lease uses them, and return their memory to the system. Idempotent.

        It does not wait for leases that there are; a new one keeps the layers loaded.
        """
        self._are_unwanted = True
        async with self._lock:
            if not self._shares:
                await self._unload(CLOSE_S)

    async def close_unused(self) -> None:
        """Close layers that no lease uses, and leave it to the end of the process to return their memory."""
        async with self._lock:
            if not self._shares:
                await self._close_layers(CLOSE_S)

    async def _await_room(self, key: LayersKey | None, share: float) -> None:
        try:
            async with asyncio.timeout(RELEASE_S):
                while not self._has_room(key, share):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            message = f"other stages of this node were not released within {RELEASE_S:g} s"
            raise BackendFailed(message, "they end when their pipelines move; the server's log says more") from error

    @property
    def _key(self) -> LayersKey | None:
        return describe_layers(self._layers.first) if self._layers is not None else None

    def _has_room(self, key: LayersKey | None, share: float) -> bool:
        if key is not None and self._own:
            return False
        if not self._shares:
            return True
        return key == self._key and sum(self._shares.values()) + share <= 1 + SHARE_ROUNDING

    def _make_own(self, assign: Assign) -> StageSlot:
        """Return a place for a stage that shares nothing."""
        thread = StageThread(f"parallax-stage-{assign.stage}")
        self._own.add(thread)

        def give_back() -> None:
            thread.close()
            self._own.discard(thread)
            self._changed.set()

        return StageSlot(thread, lambda progress: self._open_stage(assign, progress), give_back)

    def _lend(self, assign: Assign) -> StageSlot:
        """Return a place for a lease."""
        layers = self._layers = self._layers or LoadedLayers(assign, self._open_stage)
        layers.first, self._are_unwanted = assign, False
        number = self._last = self._last + 1
        self._shares[number] = assign.memory_share

        def give_back() -> None:
            self._shares.pop(number, None)
            self._changed.set()
            if self._are_unwanted and not self._shares:
                self._trimming = asyncio.create_task(self.trim())

        return StageSlot(layers.thread, lambda progress: layers.lease(assign, progress), give_back, is_shared=True)

    async def _unload(self, patience_s: float) -> bool:
        """Close the layers, and return their memory to the system; return whether none are left."""
        if self._layers is None and self._closing is None:
            return True
        is_closed = await self._close_layers(patience_s)
        return_memory()
        return is_closed

    async def _close_layers(self, patience_s: float) -> bool:
        """Close the layers, and wait for the end of a running step; return whether they are closed."""
        if self._layers is not None:
            self._closing, self._layers = self._layers.close(), None
        if self._closing is not None and (await asyncio.wait([self._closing], timeout=patience_s))[0]:
            self._closing = None
        return self._closing is None


def describe_layers(assign: Assign) -> LayersKey:
    """Return what the layers of an assigned lease are loaded for."""
    return (
        assign.backend,
        assign.model,
        (assign.holds_start, assign.holds_stop),
        assign.dtype,
        assign.device,
        (assign.memory_fraction, assign.max_batch_tokens, assign.max_running),
    )
