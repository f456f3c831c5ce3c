"""Runs clients that send requests without a pause, and records the answers; used by `benchmarks.chaos`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from parallax_core.api import Finish, Request, RequestId, Sampling, StagePlan, Unavailable
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine
from parallax_core.node.routing.router import Router
from parallax_core.testing.toy import Toy

TOY = Toy(("full", "window", "full"))
LENGTH = 16
"""Tokens of each answer of the real model."""
PROMPTS = [list(range(start, start + size)) for start, size in ((500, 7), (900, 19), (40, 3), (12_000, 33), (7, 12))]
"""Prompts of the real model, as arbitrary token ids."""
QUIET_S = 60.0
"""Seconds within which requests must be answered once the pipeline is repaired."""


@dataclass(slots=True)
class SentRequest:
    """A request that was sent, and its answer."""

    prompt: tuple[int, ...]
    length: int
    began: float
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    pause_s: float = 0.0
    """The longest wait for a delta, in seconds."""


class ClientPool:
    """Clients of a router, and the requests they have sent."""

    def __init__(self, router: Router, rng: random.Random, on_error: Callable[[Finish], None], *, is_toy: bool) -> None:
        """Send requests to ``router``; ``on_error`` is called with the finish of each that ends with an error."""
        self._router = router
        self._random = rng
        self._on_error = on_error
        self._is_toy = is_toy
        self._names = count()
        self.sent: list[SentRequest] = []
        self.num_refused = 0
        self.is_over = False
        self._since, self._answered = 0.0, asyncio.Event()

    async def wait_answer(self) -> None:
        """Wait until a request sent from now on is fully answered, which shows that all stages work."""
        self._since, self._answered = now(), asyncio.Event()
        async with asyncio.timeout(QUIET_S):
            await self._answered.wait()

    async def send_requests(self) -> None:
        """Send one request after another until `is_over` is set."""
        while not self.is_over:
            await self.send()

    async def send(self) -> SentRequest | None:
        """Send a request and read its answer; return None if the router refuses it."""
        prompt, length = self._draw_request()
        name = RequestId(str(next(self._names)))
        request = Request(id=name, prompt=prompt, max_tokens=length, sampling=Sampling(temperature=0))
        try:
            stream = self._router.submit(request)
        except Unavailable:
            self.num_refused += 1
            await asyncio.sleep(0.05)
            return None
        sent = SentRequest(prompt, length, now())
        self.sent.append(sent)
        latest = sent.began
        async for delta in stream:
            sent.pause_s, latest = max(sent.pause_s, now() - latest), now()
            sent.tokens += delta.tokens
            if delta.finish is not None:
                sent.reason = delta.finish.reason
                if sent.reason == "error":
                    self._on_error(delta.finish)
        sent.ended = now()
        if sent.reason == "length" and sent.began >= self._since:
            self._answered.set()
        return sent

    def _draw_request(self) -> tuple[tuple[int, ...], int]:
        if not self._is_toy:
            return tuple(self._random.choice(PROMPTS)), LENGTH
        size = self._random.randint(1, 40)
        return tuple(self._random.randrange(TOY.vocab) for _ in range(size)), self._random.randint(2, 60)


async def finish_clients(clients: Sequence[asyncio.Task[None]], pool: ClientPool) -> int:
    """Stop sending, wait for the answers under way, and return the number of clients that got none in time."""
    pool.is_over = True
    _, hung = await asyncio.wait(clients, timeout=QUIET_S)
    for client in hung:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return len(hung)


async def continue_prompts(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """Return the continuation of each prompt, computed by the real model in this process."""
    from parallax_backend_mlx.backend import MlxBackend

    plan = StagePlan(model=folder, dtype="float32", memory_fraction=0.05)
    engine = PipelineEngine(LocalExecutor([partial(MlxBackend().open_stage, plan)]), lambda tokens: "x" * len(tokens))
    await engine.start()

    async def ask(number: int) -> list[int]:
        name, prompt = RequestId(f"reference-{number}"), tuple(PROMPTS[number])
        request = Request(id=name, prompt=prompt, max_tokens=LENGTH, sampling=Sampling(temperature=0))
        return [token async for delta in engine.submit(request) for token in delta.tokens]

    answers = await asyncio.gather(*map(ask, range(len(PROMPTS))))
    await engine.stop()
    return dict(zip(map(tuple, PROMPTS), answers, strict=True))


def now() -> float:
    """Return the time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()
