"""Clients of a router that send requests without a pause, and record how each was answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from parallax_core.api import Finish, Request, RequestId, Sampling, Unavailable
from parallax_core.node.routing.router import Router
from parallax_core.testing.toy import Toy

TOY = Toy(("full", "window", "full"))
QUIET_S = 120.0
"""Seconds within which requests must be answered once the pipeline is repaired."""
GAP_S = 0.05
"""Shorter waits for a token are not recorded."""
VOCAB = 30
"""Token ids of prompts, which all models have."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a client sends, and what it must get."""

    prompt: tuple[int, ...]
    length: int
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0))
    right: tuple[int, ...] = ()


@dataclass(slots=True)
class SentRequest:
    """A request that was sent, and its answer; times in seconds."""

    question: Question
    began: float
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """From when until when it waited for a token."""

    @property
    def pause_s(self) -> float:
        """The longest wait for a token."""
        return max((until - since for since, until in self.gaps), default=0.0)

    @property
    def is_right(self) -> bool:
        """Whether it got the right tokens, all of them unless it ended with an error."""
        right = list(self.question.right)
        return self.tokens == (right if self.reason in {"length", "stop"} else right[: len(self.tokens)])


def draw_toy_question(rng: random.Random) -> Question:
    """Return a greedy question to the toy, whose answer is computed."""
    prompt = tuple(rng.randrange(TOY.vocab) for _ in range(rng.randint(1, 40)))
    length = rng.randint(2, 60)
    return Question(prompt, length, right=tuple(TOY.continuation(prompt, length)))


def draw_questions(rng: random.Random, length: int, number: int = 12) -> list[Question]:
    """Return questions to any model, every second sampled with a seed and penalties; their answers are not known."""
    found = []
    for index in range(number):
        sampling = Sampling(temperature=0)
        if index % 2:
            seed = rng.randrange(2**32)
            sampling = Sampling(temperature=0.9, top_p=0.95, seed=seed, presence_penalty=0.5, min_tokens=9)
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 40)))
        found.append(Question(prompt, rng.randint(length // 3, length), sampling))
    return found


class ClientPool:
    """Clients of a router, and the requests they have sent."""

    def __init__(
        self,
        router: Router,
        rng: random.Random,
        on_error: Callable[[Finish], None] = lambda _: None,
        questions: Sequence[Question] = (),
    ) -> None:
        """Send requests to ``router``; ``on_error`` is called with the finish of each that ends with an error."""
        self._router = router
        self._random = rng
        self._on_error = on_error
        self._questions = list(questions)
        self._names = count()
        self.sent: list[SentRequest] = []
        self.num_refused = 0
        self.is_over = False
        self._since, self._answered = 0.0, asyncio.Event()

    async def learn(self) -> None:
        """Read the answer to each question, one at a time, and take it for the right one."""
        for index, question in enumerate(self._questions):
            sent = await self.ask(question)
            self._questions[index] = Question(question.prompt, question.length, question.sampling, tuple(sent.tokens))
        self.sent.clear()

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
        question = self._random.choice(self._questions) if self._questions else draw_toy_question(self._random)
        try:
            return await self.ask(question)
        except Unavailable:
            self.num_refused += 1
            await asyncio.sleep(0.05)
            return None

    async def ask(self, question: Question) -> SentRequest:
        """Send a question and read its answer.

        Raises:
            Unavailable: if the router refuses it.
        """
        name = RequestId(str(next(self._names)))
        prompt, length = question.prompt, question.length
        stream = self._router.submit(Request(id=name, prompt=prompt, max_tokens=length, sampling=question.sampling))
        sent = SentRequest(question, latest := now())
        self.sent.append(sent)
        async for delta in stream:
            if now() - latest > GAP_S:
                sent.gaps.append((latest, now()))
            latest = now()
            sent.tokens += delta.tokens
            if delta.finish is not None:
                sent.reason, sent.message = delta.finish.reason, delta.finish.message
                if sent.reason == "error":
                    self._on_error(delta.finish)
        sent.ended = now()
        if sent.reason in {"length", "stop"} and sent.began >= self._since:
            self._answered.set()
        return sent


async def finish_clients(clients: Sequence[asyncio.Task[None]], pool: ClientPool) -> int:
    """Stop sending, wait for the answers under way, and return the number of clients that got none in time."""
    pool.is_over = True
    _, hung = await asyncio.wait(clients, timeout=QUIET_S)
    for client in hung:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return len(hung)


def now() -> float:
    """Return the time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()
