"""The server's end of a link to an engine: sends requests, and receives tokens and status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NoReturn

from parallax_core.api import (
    BackendFailed,
    Delta,
    EngineStats,
    NodeLink,
    PeerLost,
    Request,
    RequestId,
    TokenLogprob,
)
from parallax_core.api.node import FailFastGroup
from parallax_engines.conversion import is_part, make_submit, unpack_delta
from parallax_engines.messages import Abort, Deltas, EngineStatus, Submit, TokenDelta

SILENCE_S = 300.0
"""Seconds without a token, while there are requests, after which an engine counts as hung by default."""
WATCHES = 4
"""How often that is checked in such a time."""

DeliverDeltas = Callable[[Iterable[tuple[RequestId, Delta]]], None]


@dataclass(slots=True)
class OpenRequest:
    """A request that the engine computes."""

    id: RequestId
    num_prompt: int
    num_answers: int
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Those that came ahead of the first delta."""


class EngineLink:
    """The requests of one engine process, by their numbers on its link. Belongs to one event loop."""

    def __init__(self, link: NodeLink, deliver: DeliverDeltas, silence_s: float = SILENCE_S) -> None:
        """Give the deltas that arrive to ``deliver``, one batch per message.

        The engine hangs if it has requests and gives none of them a token for ``silence_s`` seconds.
        """
        self._link = link
        self._deliver = deliver
        self._outbox: asyncio.Queue[Submit | Abort] = asyncio.Queue()
        self._requests: dict[int, OpenRequest] = {}
        self._numbers: dict[RequestId, int] = {}
        self._num_submitted = 0
        self._silence_s = silence_s
        self._latest = 0.0
        """The time at which a delta came, or a request when there was no other."""
        self.stats = EngineStats()
        """As the engine last reported them."""
        self.has_answered = False
        """Whether a request has got a token."""

    def submit(self, request: Request) -> None:
        """Submit a request.

        Raises:
            InvalidRequest: if it does not fit into a message.
        """
        number = self._num_submitted
        submit = make_submit(number, request)
        if not self._requests:
            self._latest = asyncio.get_running_loop().time()
        self._num_submitted += 1
        self._requests[number] = OpenRequest(request.id, len(request.prompt), request.n)
        self._numbers[request.id] = number
        self._outbox.put_nowait(submit)

    def abort(self, request_id: RequestId) -> None:
        """End a request without a further delta. Does nothing if it has ended."""
        number = self._numbers.pop(request_id, None)
        if number is not None:
            del self._requests[number]
            self._outbox.put_nowait(Abort((number,)))

    async def run(self) -> NoReturn:
        """Send and receive until the engine is lost.

        Raises:
            PeerLost: if the link ends, or the node sends what it must not.
            BackendFailed: if the engine reports that it has failed, or hangs.
        """
        async with FailFastGroup() as group:
            group.start(self._send())
            group.start(self._receive())
            group.start(self._watch())
        raise AssertionError("both tasks run until one fails")

    async def _send(self) -> None:
        while True:
            await self._link.send(await self._outbox.get())

    async def _receive(self) -> None:
        while True:
            match await self._link.receive():
                case Deltas(deltas):
                    self._latest = asyncio.get_running_loop().time()
                    self._deliver([found for delta in deltas if (found := self._read(delta))])
                case EngineStatus() as status:
                    self._note(status)
                case message:
                    raise PeerLost(
                        f"node {self._link.peer!r} sent a {type(message).__name__}, which is unexpected here"
                    )

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._silence_s / WATCHES)
            if self._requests and asyncio.get_running_loop().time() - self._latest > self._silence_s:
                raise BackendFailed(f"the engine has given no token for {self._silence_s:g} s")

    def _read(self, delta: TokenDelta) -> tuple[RequestId, Delta] | None:
        """Return the delta of an open request; None if it was aborted, or more of the delta follows."""
        request = self._requests.get(delta.number)
        if request is None:
            return None
        if delta.index >= request.num_answers:
            raise PeerLost(f"the engine sent answer {delta.index} of a request for {request.num_answers}")
        found = unpack_delta(delta, request.num_prompt)
        if is_part(delta):
            request.prompt_logprobs += found.prompt_logprobs
            return None
        if request.prompt_logprobs:
            found = replace(found, prompt_logprobs=request.prompt_logprobs + found.prompt_logprobs)
            request.prompt_logprobs = ()
        self.has_answered = self.has_answered or bool(found.tokens)
        if found.finish is not None:
            del self._requests[delta.number]
            self._numbers.pop(request.id, None)
        return request.id, found

    def _note(self, status: EngineStatus) -> None:
        if status.state == "failed":
            raise BackendFailed(f"the engine has failed: {status.reason}")
        self.stats = status.stats
