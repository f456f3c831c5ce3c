"""Compiles the grammars of requests on a thread, and keeps them for later requests."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from parallax_core.base.errors import ParallaxError
from parallax_core.base.faults import describe_error
from parallax_core.base.ids import RequestId
from parallax_core.base.tasks import TASK_ENDINGS
from parallax_core.contracts.grammar import CompiledGrammar, Grammar, GrammarCompiler
from parallax_core.engine.head import Head
from parallax_core.node.pipeline.bounded_thread import BoundedThread

logger = logging.getLogger(__name__)

MOST_KEPT = 64
"""The most compiled grammars that are kept for later requests."""
LIMIT_S = 10.0
"""Seconds that a grammar may take to be compiled. A server has it compiled once before, in less, where it can be
stopped: it hangs."""


class CompiledGrammars:
    """The grammars of one engine. Belongs to one event loop."""

    def __init__(self, compiler: GrammarCompiler, head: Head, wake: Callable[[], None]) -> None:
        """Compile with ``compiler`` for requests of ``head``; call ``wake`` when one of them can go on or has ended."""
        self._compiler = compiler
        self._head = head
        self._wake = wake
        self._thread = BoundedThread("parallax-grammars", "compiling the grammar", LIMIT_S)
        self._turn = asyncio.Lock()
        self._kept: OrderedDict[Grammar, CompiledGrammar] = OrderedDict()
        self._preparing: set[asyncio.Task[None]] = set()

    def find(self, grammar: Grammar) -> CompiledGrammar | None:
        """Return a grammar that was compiled lately, or None."""
        if found := self._kept.get(grammar):
            self._kept.move_to_end(grammar)
        return found

    def prepare(self, request_id: RequestId, grammar: Grammar) -> None:
        """Compile the grammar of a request, which then goes on or ends."""
        task = asyncio.get_running_loop().create_task(self._prepare(request_id, grammar))
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    def close(self) -> None:
        """Compile no more."""
        for task in self._preparing:
            task.cancel()
        self._thread.close()

    async def _prepare(self, request_id: RequestId, grammar: Grammar) -> None:
        try:
            compiled = await self._compile(grammar)
        except TASK_ENDINGS:
            self._head.refuse(request_id, "its grammar was not compiled")
            raise
        except ParallaxError as error:
            self._head.refuse(request_id, error.message)
        except BaseException as error:  # a panic of the library, too
            logger.exception("grammar cannot be compiled")
            self._head.refuse(request_id, f"its grammar cannot be compiled: {describe_error(error)}")
        else:
            self._head.release(request_id, compiled)
        finally:
            self._wake()

    async def _compile(self, grammar: Grammar) -> CompiledGrammar:
        async with self._turn:
            if (found := self.find(grammar)) is not None:  # compiled meanwhile, for another request
                return found
            compiled = await self._thread.call(partial(self._compiler.compile, grammar))
        self._kept[grammar] = compiled
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return compiled
