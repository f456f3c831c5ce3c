"""Checks the grammars of requests before an engine gets them, one at a time, in turns of the clients."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from weakref import WeakValueDictionary

import msgspec

from parallax_core.contracts.grammar import Grammar
from parallax_core.server.body_messages import BodyRequest, DirectAnswer, RefusedBody
from parallax_core.server.tokenizer_process import TokenizerProcess

LIMIT_S = 10.0
"""Seconds that checking a grammar may take before its process is killed; it limits itself to a second."""
QUICK_S = 0.05
"""Processor seconds: grammars that compile faster are not checked again while remembered."""
MOST_KNOWN = 64
"""The grammars that are remembered."""


class GrammarQueue:
    """Checks grammars in a process of its own.

    Each client has one grammar at a time in the queue, so that one that sends many slow ones delays its own most.
    Belongs to one event loop.
    """

    def __init__(self, process: TokenizerProcess) -> None:
        self._process = process
        self._turn = asyncio.Lock()
        self._clients: WeakValueDictionary[bytes, asyncio.Lock] = WeakValueDictionary()
        self._known: OrderedDict[bytes, None] = OrderedDict()
        """The digests of grammars that are good and quick to compile, the least recently used first."""
        self._checking: set[asyncio.Task[None]] = set()

    @property
    def takes_grammars(self) -> bool:
        """See `BodyReading.takes_grammars`."""
        return self._process.takes_grammars

    async def start(self) -> None:
        """Start the process; grammars wait meanwhile. If that fails, the next grammar tries again."""
        async with self._turn:
            await self._process.revive()

    async def close(self) -> None:
        """Kill the process; grammars that are not checked yet are refused."""
        await self._process.close()
        await asyncio.gather(*self._checking, return_exceptions=True)

    async def check(self, grammar: Grammar, client: bytes) -> None:
        """Check a grammar of a client. A caller that is cancelled gives up its place.

        Raises:
            InvalidRequest: if it cannot be compiled in time.
            ParallaxError: if the process is lost or closed.
        """
        source = msgspec.msgpack.encode(grammar)
        digest = hashlib.sha256(source).digest()
        if self._is_known(digest):
            return
        own = self._clients.setdefault(client, asyncio.Lock())
        async with own:
            await self._turn.acquire()
            # It is not cancelled with the caller: the process is free only when it ends.
            checking = asyncio.create_task(self._check(source, digest))
            self._checking.add(checking)
            checking.add_done_callback(self._release)
            await asyncio.shield(checking)

    async def _check(self, source: bytes, digest: bytes) -> None:
        if self._is_known(digest):  # meanwhile
            return
        try:
            result = await self._process.read(BodyRequest(kind="grammar", body=source), LIMIT_S)
        finally:
            await self._process.revive()
        if isinstance(result.content, RefusedBody):
            raise result.content.as_error()
        assert isinstance(result.content, DirectAnswer)
        if msgspec.json.decode(result.content.body)["seconds"] < QUICK_S:
            self._known[digest] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def _is_known(self, digest: bytes) -> bool:
        if is_known := digest in self._known:
            self._known.move_to_end(digest)
        return is_known

    def _release(self, checking: asyncio.Task[None]) -> None:
        self._checking.discard(checking)
        self._turn.release()
        if not checking.cancelled():
            checking.exception()  # its caller may be gone
