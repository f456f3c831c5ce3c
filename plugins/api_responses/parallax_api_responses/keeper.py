"""Keeps the responses that clients ask to keep, and those that run in the background."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec

from parallax_api_responses.background import BackgroundRun, Submit
from parallax_api_responses.begun import BegunResponse, Journal
from parallax_api_responses.kept_events import BLOCK
from parallax_api_responses.kept_reading import KeptReading
from parallax_api_responses.part_list import find_response, list_items
from parallax_api_responses.plan import KeptHistory, WantedHistory
from parallax_api_responses.store import LargeHistory, ResponseStore, StoredResponse
from parallax_api_responses.writer import ResponsesWriter
from parallax_core.api import Delta, InvalidRequest, ParallaxError, Unavailable
from parallax_core.api.bodies import JsonObject, UnknownPart, to_json
from parallax_core.api.dialect import FaultLog, Overloaded, ResponseFlow, ServerOptions, UnreadOutput, is_full

logger = logging.getLogger(__name__)

MOST_RUNNING = 64
"""The most responses that a client may run in the background, unless the number of its requests is limited."""
LEAST_HISTORY = 8 * 2**20
"""The bytes of earlier responses that a request may always continue; more if a body may be larger."""
END_S = 1.0
"""Seconds that responses in the background have to end once the engine has stopped."""
FIELD = "previous_response_id"


class ResponseKeeper:
    """The responses of all clients; a client is named by `client_id.identify`, and finds only its own."""

    def __init__(
        self,
        store: ResponseStore | None = None,
        max_running: int = 0,
        max_history: int = LEAST_HISTORY,
        backlog: UnreadOutput | None = None,
    ) -> None:
        """Keep responses in ``store``, if there is one.

        Args:
            store: of complete responses.
            max_running: the most responses that a client may run in the background; 0: `MOST_RUNNING`.
            max_history: the most bytes of the responses that a request continues.
            backlog: bounds what clients have not read.
        """
        self._store = store
        self._max_running = max_running or MOST_RUNNING
        self._max_history = max_history
        self._backlog = backlog or UnreadOutput()
        self._unread: Counter[bytes] = Counter()
        """By client, the bytes of kept responses that are being sent."""
        self._runs: dict[tuple[bytes, str], BackgroundRun] = {}
        self._owners: dict[str, bytes] = {}
        """The client of each run, by its id."""
        self._running: Counter[bytes] = Counter()
        self.begun = {} if store is None else {(each.owner, each.id): each for each in store.begun}
        """The responses of the server before this one that have not gone on yet."""
        self._left: set[tuple[bytes, str]] = set()
        """The responses that this server has left to the next one."""
        self._faults = FaultLog(logger, "the response store")

    @property
    def has_store(self) -> bool:
        """Whether responses are kept."""
        return self._store is not None

    def suspend(self) -> None:
        """Leave responses in the background to the next server, if they are kept as they come: this one ends."""
        for run in self._runs.values():
            run.suspend()

    async def close(self) -> None:
        """Wait for running responses, whose engine has stopped, and close the store."""
        if self._runs:
            await asyncio.wait([asyncio.ensure_future(run.wait()) for run in self._runs.values()], timeout=END_S)
        if self._store is not None:
            await self._store.close()

    async def find_history(self, owner: bytes, name: str) -> bytes:
        """Return the input and the output of a response and of all that it continues, as a JSON list.

        Raises:
            InvalidRequest: if one of them is not kept, or not complete, or they are too large; it names the field.
        """
        if (owner, name) in self._runs or self._is_between(owner, name):
            message = f"the response '{name[:100]}' is not complete"
            raise InvalidRequest(message, FIELD, "continue it when it is")
        try:
            history = name if self._store is None else await self._store.read_history(owner, name, self._max_history)
        except LargeHistory:
            message = f"the conversation before it has more than {self._max_history} bytes"
            raise InvalidRequest(message, FIELD, "send its important parts as 'input', or compact it") from None
        if isinstance(history, str):
            message = f"the response '{history[:100]}' is not kept here, or it is not yours"
            raise InvalidRequest(message, FIELD, "send the conversation as 'input'")
        return history

    async def find_items(self, owner: bytes, names: Sequence[str]) -> bytes:
        """Return items of complete responses by their ids, as a JSON list.

        Raises:
            UnknownPart: if one is not kept, or belongs to another client.
        """
        found: dict[str, JsonObject] = {}
        for response in dict.fromkeys(map(find_response, names)):
            if response and (stored := await self.find(owner, response)):
                found.update(await asyncio.to_thread(list_items, stored))
        for name in names:
            if name not in found:
                message = f"no item with the id '{name[:100]}' is kept here, or it is not yours"
                raise UnknownPart(message, "send the item itself")
        return to_json([found[name] for name in names])

    def describe(self) -> bytes:
        """Return what the reader of a body knows of the store; see `KeptHistory`."""
        return msgspec.msgpack.encode(KeptHistory(has_store=self.has_store))

    async def supply(self, owner: bytes, asked: bytes) -> bytes:
        """Return the stored items and history that a body refers to.

        Raises:
            ParallaxError: as `find_items` and `find_history` do.
        """
        wanted = msgspec.msgpack.decode(asked, type=WantedHistory)
        items = await self.find_items(owner, wanted.items)
        history = None if wanted.previous is None else await self.find_history(owner, wanted.previous)
        return msgspec.msgpack.encode(KeptHistory(has_store=self.has_store, history=history, items=items))

    def check_room(self, owner: bytes) -> None:
        """Check that a client may run one more response in the background.

        Raises:
            Overloaded: if it may not.
        """
        if self._running[owner] >= self._max_running:
            message = f"you have {self._running[owner]} responses running in the background"
            raise Overloaded(message, "try again when one of them has ended")

    async def run(
        self, owner: bytes, flow: ResponseFlow, writer: ResponsesWriter, begun: BegunResponse | None = None
    ) -> BackgroundRun:
        """Run a response in the background, and keep it; raises what `check_room` raises.

        With ``begun``, it is kept as it comes, if the store is durable.
        """
        self.check_room(owner)
        self._running[owner] += 1
        try:
            journal = await self._begin(begun) if begun is not None else None
        except BaseException:
            self._leave(owner)
            raise
        return self._add(owner, BackgroundRun(flow, writer, self._save_run, journal), writer)

    async def restore(self, begun: BegunResponse, writer: ResponsesWriter, submit: Submit) -> BackgroundRun:
        """Go on with a response of the server before this one.

        Raises:
            ParallaxError: if the store cannot be read.
        """
        assert self._store is not None, "it has what has begun"
        deltas: list[Delta] = await self._store.read_begun(begun.id)
        self._running[begun.owner] += 1
        del self.begun[begun.owner, begun.id]
        run = BackgroundRun(None, writer, self._save_run, self._open_journal(begun.id), (deltas, submit))
        return self._add(begun.owner, run, writer)

    def _add(self, owner: bytes, run: BackgroundRun, writer: ResponsesWriter) -> BackgroundRun:
        self._owners[writer.id] = owner
        self._runs[owner, writer.id] = run
        return run

    async def _begin(self, begun: BegunResponse) -> Journal | None:
        """Return what keeps a response as it comes; None: it ends with this server."""
        if self._store is None or not self._store.is_durable:
            return None
        try:
            await self._store.begin(begun)
        except ParallaxError as error:
            self._faults.note(f"responses are not kept: {error.message}")
            return None
        return self._open_journal(begun.id)

    def _open_journal(self, name: str) -> Journal:
        async def append(piece: bytes) -> None:
            assert self._store is not None, "it is durable"
            try:
                await self._store.append(name, piece)
            except ParallaxError as error:
                self._faults.note(f"responses are not kept: {error.message}")

        return Journal(append)

    async def _save_run(self, run: BackgroundRun) -> None:
        """Keep a response that has ended, unless the next server goes on with it."""
        owner, writer = self._owners.pop(run.writer.id), run.writer
        try:
            if run.is_suspended and writer.reply.status in {"queued", "in_progress"}:
                self._left.add((owner, writer.id))
            else:
                await self.save(owner, writer, run.events)
        finally:
            self._leave(owner)
            del self._runs[owner, writer.id]

    def _leave(self, owner: bytes) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    async def save(self, owner: bytes, writer: ResponsesWriter, events: Sequence[bytes] | None = None) -> None:
        """Keep a response if its client wants that; ``events``: all of a response in the background.

        One that cannot be written is not kept, and its client gets it all the same.
        """
        plan = writer.plan
        if self._store is None or not plan.stores:
            return
        body = to_json(writer.reply)
        stored = StoredResponse(id=writer.id, owner=owner, previous=plan.previous, body=body, input=plan.input)
        try:
            await self._store.put(stored, events)
            self._faults.clear()
        except ParallaxError as error:
            self._faults.note(f"responses are not kept: {error.message}")

    def find_run(self, owner: bytes, name: str) -> BackgroundRun | None:
        """Return a response of a client that runs in the background.

        Raises:
            Unavailable: if it is about to go on, here or on the next server.
        """
        if self._is_between(owner, name):
            raise Unavailable("this response goes on when its model is loaded", "try again in a few seconds")
        return self._runs.get((owner, name))

    def _is_between(self, owner: bytes, name: str) -> bool:
        """Whether one server has left a response, and the next has not gone on with it."""
        return (owner, name) in self.begun or (owner, name) in self._left

    async def find(self, owner: bytes, name: str) -> StoredResponse | None:
        """Return a complete response of a client."""
        return None if self._store is None else await self._store.get(owner, name)

    def begin_reading(self, owner: bytes, num_bytes: int = BLOCK) -> KeptReading:
        """Return an account of sending a stored response, with a first piece of at most ``num_bytes`` bytes.

        Raises:
            Overloaded: if there is no room for it.
        """
        reading = KeptReading(self._backlog, self._unread, owner)
        reading.hold(num_bytes)
        return reading

    async def read_events(self, owner: bytes, name: str, first: int) -> AsyncIterator[bytes]:
        """Yield the events of a complete response of a client that ran in the background; see `ResponseStore`."""
        if self._store is not None:
            async for piece in self._store.read_events(owner, name, first):
                yield piece

    async def delete(self, owner: bytes, name: str) -> bool:
        """Delete a response of a client, after ending it; return whether there was one."""
        if run := self.find_run(owner, name):
            await run.cancel()
        return self._store is not None and await self._store.delete(owner, name)


def make_keeper(options: ServerOptions, backlog: UnreadOutput | None = None) -> ResponseKeeper:
    """Return a server's keeper, in memory if the disk is full; ``backlog`` bounds unread output of its clients.

    Raises:
        ParallaxError: if its store cannot be opened.
    """
    store = None
    if options.response_bytes:
        limits = options.response_bytes, options.response_ttl_s
        try:
            store = ResponseStore(options.response_store, *limits)
        except ParallaxError as error:
            if not is_full(error.__cause__):
                raise
            logger.warning("%s; until a restart, responses are kept in memory", error.message)
            store = ResponseStore(None, *limits)
    return ResponseKeeper(store, options.max_concurrent, max(LEAST_HISTORY, options.max_body_bytes), backlog)
