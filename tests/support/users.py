"""Users of a simulated pipeline who each send one request after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop
from math import inf
from random import Random
from statistics import fmean
from typing import NamedTuple

from parallax_core.contracts.placement import ServingGoal
from parallax_simulate.pipeline import SimulatedPipeline, SimulatedRequest
from parallax_simulate.trace import Arrival


class Measured(NamedTuple):
    """The speeds that the users see."""

    tokens_per_s: float
    ttft_s: float
    token_s: float


@dataclass(slots=True)
class _Sent:
    user: int
    at: float
    num_tokens: int
    is_measured: bool
    first: float = field(default=inf)


def measure_users(pipeline: SimulatedPipeline, goal: ServingGoal, num_users: int, span_s: float) -> Measured:
    """Return the speeds of the requests that are sent in the second half of ``span_s``.

    Answers have between half and one and a half times the tokens of the goal.
    """
    lengths, now, count = _draw_lengths(goal.output_tokens, num_users), 0.0, 0
    sent: dict[int, _Sent] = {}
    done: list[tuple[_Sent, float]] = []
    starts = [(rank / num_users * span_s / 8, rank) for rank in range(num_users)]
    heapify(starts)

    def send(user: int) -> None:
        nonlocal count
        num_tokens = next(lengths)
        pipeline.submit(SimulatedRequest(count, Arrival(now, goal.prompt_tokens, num_tokens)), now)
        sent[count] = _Sent(user, now, num_tokens, span_s / 2 <= now < span_s)
        count += 1

    while now < span_s or any(each.is_measured for each in sent.values()):
        if starts and starts[0][0] <= pipeline.next_at:
            now, user = heappop(starts)
            send(user)
            continue
        now = max(now, pipeline.next_at)
        for drawn in pipeline.advance(now):
            request = sent[drawn.number]
            request.first = min(request.first, drawn.at)
            if drawn.is_over:
                if request.is_measured:
                    done.append((request, drawn.at))
                del sent[drawn.number]
                send(request.user)
    spent_s, tokens = sum(end - each.at for each, end in done), sum(each.num_tokens for each, _ in done)
    ttft_s = fmean(each.first - each.at for each, _ in done)
    token_s = sum(end - each.first for each, end in done) / (tokens - len(done))
    return Measured(num_users * tokens / spent_s, ttft_s, token_s)


def _draw_lengths(mean: int, seed: int) -> Iterator[int]:
    random = Random(seed)
    while True:
        length = random.randint(mean // 2, 3 * mean // 2)
        yield length
        yield 2 * mean - length
