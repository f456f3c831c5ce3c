"""Clients that ask without a pause, and what they were answered."""

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
"""Tokens of each answer of the model."""
PROMPTS = [list(range(start, start + size)) for start, size in ((500, 7), (900, 19), (40, 3), (12_000, 33), (7, 12))]
"""Token ids: what they mean is of no account."""
QUIET_S = 60.0
"""How long what was asked may take to be answered once nothing is broken any more."""


@dataclass(slots=True)
class Asked:
    """A request that was made."""

    prompt: tuple[int, ...]
    length: int
    began: float
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    pause_s: float = 0.0
    """The longest wait for a delta."""


class Crowd:
    """The clients."""

    def __init__(self, router: Router, rng: random.Random, on_error: Callable[[Finish], None], *, is_toy: bool) -> None:
        """Ask ``router``; ``on_error`` is told of each request that ends with an error."""
        self._router = router
        self._random = rng
        self._on_error = on_error
        self._is_toy = is_toy
        self._names = count()
        self.asked: list[Asked] = []
        self.num_refused = 0
        self.is_over = False
        self._since, self._answered = 0.0, asyncio.Event()

    async def wait_answer(self) -> None:
        """Wait until a request that is made from now on is answered whole: everything serves."""
        self._since, self._answered = now(), asyncio.Event()
        async with asyncio.timeout(QUIET_S):
            await self._answered.wait()

    async def keep_asking(self) -> None:
        """Ask until it is time to go home."""
        while not self.is_over:
            await self.ask()

    async def ask(self) -> Asked | None:
        """Ask once; None if nothing is taken now."""
        prompt, length = self._think()
        name = RequestId(str(next(self._names)))
        request = Request(id=name, prompt=prompt, max_tokens=length, sampling=Sampling(temperature=0))
        try:
            stream = self._router.submit(request)
        except Unavailable:
            self.num_refused += 1
            await asyncio.sleep(0.05)
            return None
        asked = Asked(prompt, length, now())
        self.asked.append(asked)
        latest = asked.began
        async for delta in stream:
            asked.pause_s, latest = max(asked.pause_s, now() - latest), now()
            asked.tokens += delta.tokens
            if delta.finish is not None:
                asked.reason = delta.finish.reason
                if asked.reason == "error":
                    self._on_error(delta.finish)
        asked.ended = now()
        if asked.reason == "length" and asked.began >= self._since:
            self._answered.set()
        return asked

    def _think(self) -> tuple[tuple[int, ...], int]:
        if not self._is_toy:
            return tuple(self._random.choice(PROMPTS)), LENGTH
        size = self._random.randint(1, 40)
        return tuple(self._random.randrange(TOY.vocab) for _ in range(size)), self._random.randint(2, 60)


async def quieten(clients: Sequence[asyncio.Task[None]], crowd: Crowd) -> int:
    """Have nobody ask any more once what was asked is answered; return how many are not answered in time."""
    crowd.is_over = True
    _, hung = await asyncio.wait(clients, timeout=QUIET_S)
    for client in hung:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return len(hung)


async def continue_prompts(folder: Path) -> dict[tuple[int, ...], list[int]]:
    """Return what follows each prompt, of the model in one process."""
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
