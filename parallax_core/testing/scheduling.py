"""The kit for scheduling policies. Subclass it as ``Test...``, and give the policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parallax_core.base.ids import RequestId
from parallax_core.contracts.engine import Request
from parallax_core.contracts.policy import PromptShare, PromptView, SchedulingPolicy, SchedulingView
from parallax_core.contracts.stage import Draw, Drawn, StageResult
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.limits import Limits
from parallax_core.engine.options import HeadOptions
from parallax_core.node.policy.guard import SchedulingGuard
from parallax_core.testing.policy import PolicyConformance
from parallax_core.testing.promise import broken
from parallax_core.testing.toy import GREEDY, Toy

SHARES = "Return a list or tuple of shares, the first served first; each names another prompt of the view"
TOKENS = "The number of tokens, from 0 to `PromptView.remaining`"
STARVING = "Starving a prompt is an error"
ALWAYS = "so a policy holds nothing back"
STEP_S, NUM_STEPS = 0.5, 120
"""Seconds of a step while others keep coming, and the number of those steps."""
ARRIVES = 8
"""The step before which the request comes that must not starve."""
MOST_STEPS = 3000


class SchedulingConformance(PolicyConformance[SchedulingView]):
    """Holds a scheduling policy to its contract."""

    def list_cases(self) -> Sequence[SchedulingView]:
        """Return views: of nothing, of one prompt, of several, and of as many as a policy ever sees."""
        sizes = [(0, 0), (0, 1), (1, 0), (3, 0), (0, 5), (4, 6), (256, 64)]
        return [make_view(num_running, num_waiting, seed) for seed, (num_running, num_waiting) in enumerate(sizes)]

    def ask(self, policy: SchedulingPolicy, case: SchedulingView) -> Sequence[PromptShare]:
        """Return its shares."""
        return policy.order(case)

    def test_shares_are_those_of_prompts_in_the_view(self) -> None:
        """Each of another prompt, and no larger; in a list or tuple."""
        for policy in self.make_policies():
            for case in self.list_cases():
                shares = self.ask(policy, case)
                assert type(shares) in {list, tuple}, broken(f"{policy!r} answers {shares!r}", SHARES)
                left = {each.index: each.remaining for each in (*case.running, *case.waiting)}
                for index, tokens in shares:
                    assert index in left, broken(f"{policy!r} names {index!r}, twice or not in the view", SHARES)
                    most = left.pop(index)
                    is_fit = type(tokens) is int and 0 <= tokens <= most
                    assert is_fit, broken(f"{policy!r} gives {tokens!r} tokens to a prompt with {most} left", TOKENS)

    def test_no_prompt_starves(self) -> None:
        """Not while others come all the time: shorter, longer, cached, more urgent, or of another client."""
        for policy in self._list_different():
            for name, flood in FLOODS.items():
                faults = run_flood(policy, flood)
                assert not faults, broken(f"{policy!r} {'; '.join(faults)}, while {name} kept coming", STARVING)

    def test_requests_end_with_their_tokens(self) -> None:
        """Those of the model, whatever the order; and no guard has to step in."""
        for policy in self._list_different():
            guard = SchedulingGuard(policy)
            for request, tokens in serve_requests(guard):
                is_right = tokens == Toy().continuation(request.prompt, request.max_tokens or 0)
                assert is_right, broken(f"with {policy!r}, request {request.id} ends after {tokens}", ALWAYS)
            assert not guard.is_faulty, broken(f"{policy!r} gives an invalid answer to a head", SHARES)

    def _list_different(self) -> list[SchedulingPolicy]:
        default, policy = self.make_policies()
        return [policy] if default == policy else [default, policy]


def make_view(num_running: int, num_waiting: int, seed: int) -> SchedulingView:
    """Return a view of prompts of three clients, with sizes drawn by ``seed``; one in three that run decodes."""
    draw = random.Random(seed)  # noqa: S311 -- no secret

    def make_prompt(index: int) -> PromptView:
        num_prompt, runs = draw.randint(1, 2000), index < num_running
        cached = draw.choice([0, draw.randint(0, num_prompt - 1)])
        return PromptView(
            index=index,
            remaining=0 if runs and index % 3 == 0 else num_prompt - cached,
            num_prompt=num_prompt,
            cached=cached,
            num_output=draw.choice([0, 0, 40]),
            age_s=draw.choice([0.0, 0.5, 9.0, 300.0]),
            begun_s=draw.choice([0.0, 0.4]) if runs else 0.0,
            priority=draw.choice([0, 0, -3, 2]),
            client=draw.choice([b"", b"key:a", b"key:b"]),
        )

    prompts = [make_prompt(index) for index in range(num_running + num_waiting)]
    return SchedulingView(
        max_tokens=draw.randint(1, 512),
        num_places=draw.randint(0, 8),
        running=tuple(prompts[:num_running]),
        waiting=tuple(prompts[num_running:]),
    )


class Flood(NamedTuple):
    """A request, and the others that come before and after it all the time."""

    request: Request
    make_other: Callable[[int], Request]
    """Makes the other of a number, from 1."""


def run_flood(policy: SchedulingPolicy, flood: Flood, num_steps: int = NUM_STEPS) -> list[str]:
    """Return what a head notes of a policy during a flood, and whether the request got no token until its end."""
    faults: list[str] = []
    info = Toy(("full",)).open(page_size=4, num_pages=100, max_batch_tokens=12, context=64).info
    limits = Limits(max_running=4, max_waiting=2 * num_steps)
    options = HeadOptions(limits=limits, scheduling=SchedulingGuard(policy), note_scheduling_fault=faults.append)
    head = Head([info], _spell, options)
    is_answered = False
    for number in range(1, num_steps):
        now = number * STEP_S
        for other in (2 * number - 1, 2 * number):
            head.accept(flood.make_other(other), now)
        if number == ARRIVES:
            head.accept(flood.request, now)
        if (step := head.plan(now)) is not None:
            head.absorb(_make_up(step), now)
        is_answered |= any(name == flood.request.id for name, _ in head.take_deltas())
    return faults if is_answered else [*faults, f"gives a prompt no token in {num_steps * STEP_S:.0f} seconds"]


def serve_requests(policy: SchedulingPolicy) -> list[tuple[Request, list[int]]]:
    """Return requests that a head with little memory serves, each with the tokens of its answer.

    Each has exactly one final delta, else its tokens are none.
    """
    stage = Toy().open(page_size=2, num_pages=14, max_batch_tokens=9, context=24)
    options = HeadOptions(limits=Limits(max_running=5), scheduling=policy)
    head = Head([stage.info], _spell, options)
    requests = [make_request(number, 1 + 5 * number % 13, b"key:%d" % (number % 3)) for number in range(24)]
    tokens: dict[RequestId, list[int]] = {request.id: [] for request in requests}
    ends: list[RequestId] = []
    arriving = iter(requests)
    for number in range(MOST_STEPS):
        if number % 2 == 0 and (request := next(arriving, None)):
            head.accept(request, number * 0.1)
        if (step := head.plan(number * 0.1)) is not None:
            stage.edit(step.edits)
            result = stage.step(step.batch).wait() if step.batch.rows else StageResult(free=stage.free)
            head.absorb(result, number * 0.1)
        for name, delta in head.take_deltas():
            tokens[name] += delta.tokens
            ends += [name] if delta.finish else []
        head.check()
    return [(each, tokens[each.id] if ends.count(each.id) == 1 else []) for each in requests]


def make_request(number: int, num_prompt: int, client: bytes = b"", priority: int = 0, start: int = 0) -> Request:
    """Return a request; prompts of the same ``start`` other than 0 begin alike."""
    prompt = tuple((start or number * 7 + place) % 97 for place in range(num_prompt))
    name = RequestId(str(number))
    return Request(id=name, prompt=prompt, max_tokens=3, sampling=GREEDY, client=client, priority=priority)


def _spell(tokens: Sequence[int]) -> str:
    return " word" * len(tokens)


def _make_up(step: PlannedStep) -> StageResult:
    draws = (output for row in step.batch.rows for output in row.outputs if isinstance(output, Draw))
    return StageResult(tuple(Drawn((1,) * draw.count) for draw in draws))


FLOODS = {
    "shorter prompts": Flood(make_request(0, 40), lambda number: make_request(number, 3)),
    "longer prompts": Flood(make_request(0, 2), lambda number: make_request(number, 9)),
    "cached prompts": Flood(make_request(0, 9), lambda number: make_request(number, 12, start=5)),
    "more urgent prompts": Flood(make_request(0, 6, priority=1), lambda number: make_request(number, 6)),
    "prompts of another client": Flood(make_request(0, 6, b"key:b"), lambda number: make_request(number, 6, b"key:a")),
    "prompts of the same client and of many": Flood(
        make_request(0, 6, b"key:1"), lambda number: make_request(number, 6, b"key:%d" % (number % 5))
    ),
}
"""By what comes all the time."""
