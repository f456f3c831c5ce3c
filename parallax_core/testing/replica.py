"""The base of the engine kit: the author's engine, requests, and streams read to their end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Delta, Engine, Finish, Request, Stream
from parallax_core.contracts.sample import Sampling
from parallax_core.testing.promise import broken
from parallax_core.testing.runner import within

LAST = "the last one, and only it, carries a finish"
ENDED = "The reason why this answer ended; other answers to the request may go on"
WHICH = "The index of the answer, in ``range(Request.n)``"
SETTLE_S = 0.05
NUMBERS = count()

Prompt = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A stream that was read to its end."""

    deltas: tuple[Delta, ...]
    finish: Finish

    def tokens(self, index: int = 0) -> list[int]:
        """Return the tokens of an answer."""
        return [token for delta in self.deltas if delta.index == index for token in delta.tokens]

    def text(self, index: int = 0) -> str:
        """Return the text of an answer."""
        return "".join(delta.text for delta in self.deltas if delta.index == index)


class EngineSubject:
    """The engine under test; most attributes have suitable defaults."""

    prompts: Sequence[Prompt]
    """At least three prompts the engine can answer, of different lengths."""
    context: int
    """A prompt with this number of tokens, each equal to the first of the first prompt, can never be served."""
    length: int = 8
    """The number of requested tokens; they fit after each prompt, and none of them ends the answer."""
    long_length: int = 40
    """The number of requested tokens if a stream is closed early; they take the engine many steps."""
    seed: Literal["exact", "engine", "none"] = "exact"
    """Whether a seed gives the same tokens everywhere, in this engine only, or not at all."""
    has_choices: bool = True
    """Whether ``Request.n`` may be more than 1; if not, it must be refused."""
    has_logprobs: bool = True
    """Whether log-probabilities can be requested; if not, they must be refused."""
    patience_s: float = 30.0
    """Seconds that a test waits for an expected event."""

    def make_engine(self) -> Engine:
        """Return an engine that is not started."""
        raise NotImplementedError

    def make_broken_engine(self) -> Engine:
        """Return an engine whose start raises."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, as the engine should."""
        raise NotImplementedError

    def make_request(self, prompt: Prompt | None = None, **changes: Any) -> Request:  # noqa: ANN401 - fields of a request
        """Return a request for ``length`` tokens, the most probable ones, with some changes."""
        request = Request(
            id=RequestId(f"kit-{next(NUMBERS)}"),
            prompt=self.prompts[0] if prompt is None else prompt,
            max_tokens=self.length,
            sampling=Sampling(temperature=0.0),
        )
        return replace(request, **changes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Engine]:
        """Start an engine, and stop it in the end."""
        engine = self.make_engine()
        await within(self.patience_s, engine.start(), "start hangs", "Become ready")
        try:
            yield engine
        finally:
            await within(self.patience_s, engine.stop(), "stop hangs", "End every stream and release all resources")

    async def ask(self, engine: Engine, prompt: Prompt | None = None, **changes: Any) -> Reply:  # noqa: ANN401 - as above
        """Submit a request and return the whole answer."""
        request = self.make_request(prompt, **changes)
        return await self.read(engine.submit(request), request)

    async def read(self, stream: Stream, request: Request) -> Reply:
        """Read a stream to its end, and check that it has one, and that its deltas make sense."""
        fault = "a stream did not end"
        deltas = await within(self.patience_s, _collect(stream), fault, LAST)
        terminal = [index for index, delta in enumerate(deltas) if delta.finish is not None]
        kinds = f"of {len(deltas)} deltas, those with a finish are {terminal}"
        assert terminal == [len(deltas) - 1], broken(kinds, LAST)
        check_ends(deltas, request.n)
        finish = deltas[-1].finish
        assert finish is not None
        return Reply(tuple(deltas), finish)

    async def check_well(self, engine: Engine) -> None:
        """Check that an engine is ready, and answers."""
        health = engine.health()
        assert health.state == "ready", broken(f"the engine is {health}", "Whether an engine can serve requests")
        reply = await self.ask(engine)
        fault = f"an engine that should be well answered with {reply.finish}"
        assert reply.finish.reason == "length", broken(fault, "How a stream ended, and its usage")


def check_ends(deltas: Sequence[Delta], num_answers: int) -> None:
    """Check that each answer ends once at most, is silent then, and has ended if the stream ended well."""
    ended: set[int] = set()
    for delta in deltas:
        assert 0 <= delta.index < num_answers, broken(f"a delta is of answer {delta.index} of {num_answers}", WHICH)
        is_late = delta.index in ended and (delta.text or delta.tokens or delta.ended)
        assert not is_late, broken(f"answer {delta.index} had ended, and goes on with {delta}", ENDED)
        ended |= {delta.index} if delta.ended else set()
    finish = deltas[-1].finish
    if finish is not None and finish.reason in {"stop", "length"}:
        missing = set(range(num_answers)) - ended
        assert not missing, broken(f"the stream is over, and answers {sorted(missing)} have not ended", ENDED)


async def count_left(threads: set[threading.Thread], patience_s: float) -> int:
    """Return how many threads and tasks more than ``threads`` and this task run, once it is quiet."""
    this = asyncio.current_task()
    left = 0
    for _ in range(int(patience_s / SETTLE_S)):
        new = [thread for thread in set(threading.enumerate()) - threads if not thread.name.startswith("asyncio_")]
        left = len(new) + len(asyncio.all_tasks() - {this})
        if not left:
            break
        await asyncio.sleep(SETTLE_S)
    return left


async def _collect(stream: Stream) -> list[Delta]:
    return [delta async for delta in stream]
