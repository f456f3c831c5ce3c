"""Makes masks on a thread, while the stages compute, and compiles grammars on another."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from parallax_core.base.errors import ParallaxError
from parallax_core.base.ids import Epoch, RequestId
from parallax_core.contracts.grammar import CompiledGrammar, Grammar, GrammarCompiler
from parallax_core.contracts.tensor import Tensor
from parallax_core.engine.head import Head
from parallax_core.engine.pending_mask import PendingMask
from parallax_core.node.executor.base import LEASE
from parallax_core.wire.messages import Mask

logger = logging.getLogger(__name__)

MOST_KEPT = 64
"""The most compiled grammars that are kept for later requests."""


@dataclass(frozen=True, slots=True)
class MadeMasks:
    """The masks of one step."""

    masks: tuple[Mask, ...]
    """One for each draw that waits for one."""
    failed: tuple[tuple[RequestId, str], ...] = ()
    """The requests that cannot go on, and why; the masks of their draws allow every token."""


class MaskMaker:
    """Makes the masks of one engine, and compiles its grammars. Belongs to one event loop."""

    def __init__(self, compiler: GrammarCompiler, vocab_size: int) -> None:
        self._compiler = compiler
        self._num_bytes = (vocab_size + 7) // 8
        self._making = ThreadPoolExecutor(1, "parallax-masks")
        self._compiling = ThreadPoolExecutor(1, "parallax-grammars")
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._preparing: set[asyncio.Task[None]] = set()

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar that was compiled lately, or None."""
        if found := self._kept.get(grammar):
            self._kept.move_to_end(grammar)
        return found

    def prepare(self, head: Head, request_id: RequestId, grammar: Grammar, wake: Callable[[], None]) -> None:
        """Compile the grammar of a request of ``head``, which then goes on or ends; call ``wake`` then."""
        task = asyncio.get_running_loop().create_task(self._prepare(head, request_id, grammar, wake))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def make(self, epoch: Epoch, step: int, pending: Sequence[PendingMask]) -> asyncio.Future[MadeMasks]:
        """Make the masks of a step, after those of all earlier steps; the future raises nothing."""
        return asyncio.get_running_loop().run_in_executor(self._making, self._make, epoch, step, pending)

    def close(self) -> None:
        """Let the threads end."""
        for task in self._preparing:
            task.cancel()
        self._making.shutdown(wait=False, cancel_futures=True)
        self._compiling.shutdown(wait=False, cancel_futures=True)

    async def _prepare(self, head: Head, request_id: RequestId, grammar: Grammar, wake: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            compiled = await loop.run_in_executor(self._compiling, self._compiler.compile, grammar)
        except Exception as error:  # noqa: BLE001 -- the request ends, whatever the error is
            head.refuse(request_id, _explain(error))
        else:
            self._keep(grammar, compiled)
            head.release(request_id, compiled)
        wake()

    def _keep(self, grammar: Grammar, compiled: CompiledGrammar) -> None:
        self._kept[grammar] = compiled
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def _make(self, epoch: Epoch, step: int, pending: Sequence[PendingMask]) -> MadeMasks:
        masks: list[Mask] = []
        failed: dict[RequestId, str] = {}
        for each in pending:
            try:
                bits = each.make()[: self._num_bytes].ljust(self._num_bytes, b"\0")
            except Exception as error:  # noqa: BLE001 -- the request ends, whatever the error is
                failed[each.request_id] = _explain(error)
                bits = b"\xff" * self._num_bytes
            masks.append(Mask(LEASE, epoch, step, each.row, Tensor("uint8", (self._num_bytes,), bits), each.output))
        return MadeMasks(tuple(masks), tuple(failed.items()))


def _explain(error: Exception) -> str:
    """Return why a request with a grammar cannot go on, for its client; log an error that is a bug."""
    if isinstance(error, ParallaxError):
        return error.message
    logger.error("grammar fails", exc_info=error)
    return f"its grammar cannot be followed: {type(error).__name__}: {error}"
