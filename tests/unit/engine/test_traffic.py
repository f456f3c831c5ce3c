"""Under any traffic, every request ends, with the tokens of the plain model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parallax_core.api import LayerRange, Request, RequestId, Sampling, SeqId, StageBatch, StageResult
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.builtin.scheduling import PriorityOrder
from parallax_core.contracts.policy import SchedulingPolicy
from parallax_core.contracts.stage import PoolKind
from parallax_core.engine.limits import Limits
from parallax_core.node.policy.guard import SchedulingGuard
from parallax_core.testing.toy import GREEDY, SizeOptions, Toy, ToyStage
from parallax_policies.preemption import NewestFirst
from parallax_policies.scheduling import FairByKey, ShortestFirst
from tests.support.grammars import STOP, SumCompiler, make_grammar
from tests.unit.engine.faulty_scheduling import AnyOrder, Faulty
from tests.unit.engine.replica import (
    NOBODY,
    NUMBERS,
    Replica,
    expect_embedding,
    expect_logprobs,
    make_request,
    read_numbers,
)

CONTEXT = 15
BROKEN = {"error": "it broke", "timeout": "timed out after 0.1 seconds"}
SAMPLINGS = (
    GREEDY,
    Sampling(seed=1),
    Sampling(seed=2, temperature=0.5, top_k=5, frequency_penalty=1.0),
    Sampling(seed=3, repetition_penalty=2.0, min_tokens=2, stop_ids=tuple(range(0, 97, 2))),
)
KINDS: tuple[PoolKind, ...] = ("full", "full", "latent", "window", "state")


@st.composite
def make_sizes(draw: st.DrawFn) -> SizeOptions:
    """Hardly more than the longest sequence needs when it is alone."""
    page_size = draw(st.integers(1, 5))
    return {
        "page_size": page_size,
        "num_pages": -(-CONTEXT // page_size) + draw(st.integers(0, 3)),
        "max_batch_tokens": draw(st.integers(2, 12)),
        "context": CONTEXT,
        "rewind": draw(st.integers(0, 3)),
        "shares": draw(st.booleans()),
        "state_pages": draw(st.integers(1, 4)),
        "checkpoint_every": draw(st.integers(0, 4)),
        "steps_ahead": draw(st.integers(0, 2)),
    }


@st.composite
def make_stages(draw: st.DrawFn) -> list[ToyStage]:
    """Return one to five stages, each with pools and pages of its own."""
    mixed = st.lists(st.sampled_from(KINDS), min_size=1, max_size=5).map(tuple)
    kinds: tuple[PoolKind, ...] = draw(st.one_of(mixed, st.sampled_from([("state",), ("full",), ("full",) * 5])))
    toy = Toy(kinds)
    inner = sorted(border for border in draw(st.sets(st.integers(1, 4))) if border < len(kinds))
    ranges = [LayerRange(*pair) for pair in pairwise([0, *inner, len(kinds)])]
    return [toy.open(layers, **draw(make_sizes())) for layers in ranges]


@st.composite
def make_requests(draw: st.DrawFn) -> Request:
    max_tokens = draw(st.integers(1, 6))
    pooling = draw(st.sampled_from([None, None, None, "last", "mean"]))
    return make_request(
        draw(st.lists(st.integers(0, 2), min_size=1, max_size=9)),
        max_tokens,
        sampling=draw(st.sampled_from([sampling for sampling in SAMPLINGS if sampling.min_tokens <= max_tokens])),
        stop_ids=frozenset(draw(st.sampled_from([(), range(0, 97, 2)]))),
        priority=draw(st.integers(-2, 2)),
        timeout_s=draw(st.sampled_from([None, None, 0.1])),
        n=draw(st.sampled_from([1, 1, 2, 3])) if pooling is None else 1,
        logprobs=draw(st.sampled_from([None, None, 0, 2])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0, 2])),
        salt=draw(st.sampled_from(["", "", "salt"])),
        client=bytes([draw(st.integers(0, 2))]),
        pooling=pooling,
    )


@st.composite
def make_grammar_requests(draw: st.DrawFn) -> Request:
    request = draw(make_requests())
    grammar = make_grammar(draw(st.integers(2, 5)), draw(st.integers(1, 4)))
    return replace(
        request,
        grammar=grammar,
        sampling=draw(st.sampled_from(SAMPLINGS[:2])),
        stop_ids=frozenset({STOP}),
        logprobs=None,
    )


class Traffic(RuleBasedStateMachine):
    """Arrivals, steps, cancels, failures, repairs and evictions over tiny pools, also while steps are in flight."""

    @initialize(
        stages=make_stages(),
        limits=st.builds(
            Limits,
            max_running=st.integers(1, 5),
            min_shared=st.integers(1, 5),
            header_bytes=st.sampled_from([1500, 2000, 2**22]),
        ),
        policies=st.tuples(
            st.sampled_from([NewestFirst(), LowestPriority()]),
            st.sampled_from([PriorityOrder, lambda: ShortestFirst(patience_s=0.1), FairByKey, AnyOrder, Faulty]),
        ),
        longest_row=st.sampled_from([0, 2, 3]),
        pace=st.sampled_from([(0.0, None), (0.001, None), (0.001, 1e-9), (0.001, 0.003)]),
    )
    def begin(
        self,
        stages: list[ToyStage],
        limits: Limits,
        policies: tuple[NewestFirst | LowestPriority, Callable[[], SchedulingPolicy]],
        longest_row: int,
        pace: tuple[float, float | None],
    ) -> None:
        """Begin with an empty head.

        ``longest_row`` ends rows early, so that others wait for them for several steps; ``pace`` has the seconds per
        token, and the target for the time between tokens.
        """
        token_s, target_s = pace
        self.header_bytes = limits.header_bytes
        preemption, scheduling = policies[0], SchedulingGuard(policies[1]())
        self.replica = Replica(
            *stages, limits=limits, preemption=preemption, scheduling=scheduling, target_itl_s=target_s
        )
        self.replica.token_s = token_s
        self.live: set[RequestId] = set()
        self.results: deque[StageResult | None] = deque()
        """Of the steps in flight, in order; None: the step failed."""
        self.last_step = 0
        self.longest_row = longest_row
        self.shorten_rows()

    @rule(request=make_requests())
    def submit(self, request: Request) -> None:
        self.live.add(self.replica.submit(request))

    @rule(request=make_grammar_requests(), is_held=st.booleans())
    def submit_with_grammar(self, request: Request, *, is_held: bool) -> None:
        self.live.add(self.replica.submit(request, is_held=is_held))

    @rule()
    def release(self) -> None:
        for request_id in self.live:
            if (grammar := self.replica.requests[request_id].grammar) is not None:
                self.replica.head.release(request_id, SumCompiler().compile(grammar))

    @rule(most=st.integers(1, 4))
    def give_masks(self, most: int) -> None:
        self.replica.give_masks(most)

    @rule(request=make_requests(), tails=st.lists(st.lists(st.integers(0, 2), max_size=2), min_size=2, max_size=2))
    def submit_together(self, request: Request, tails: list[list[int]]) -> None:
        """Requests that begin alike arrive at the same moment."""
        for tail in tails:
            prompt = (*request.prompt, *tail)[:9]
            self.submit(replace(request, id=RequestId(str(next(NUMBERS))), prompt=prompt, n=1))

    @rule(fails=st.sampled_from([False] * 9 + [True]))
    def plan(self, *, fails: bool = False) -> None:
        head = self.replica.head
        self.replica.now += 0.01
        step = head.plan(self.replica.now)
        if step is not None:
            self.last_step += 1
            assert step.batch.step == self.last_step
            if None in self.results:  # a step after one that failed is discarded
                self.results.append(None)
            elif fails and len(self.replica.stages) == 1:
                self.replica.chain.run(replace(step, batch=StageBatch(())))
                self.results.append(None)
            else:
                self.results.append(self.replica.compute(step))
        self.settle()

    @precondition(lambda self: self.results)
    @rule(named=st.lists(st.integers(0, 30).map(SeqId), max_size=2))
    def absorb(self, named: Sequence[SeqId] = ()) -> None:
        result = self.results.popleft()
        if result is not None:
            self.replica.head.absorb(result, self.replica.now)
        elif self.replica.head.fail("it broke", named):
            assert not self.results
            self.last_step -= 1
        else:
            assert self.results, "a stage alone is as it was before its only step in flight"
            self.lose_steps()
        self.settle()

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        request_id = sorted(self.live)[pick % len(self.live)]
        self.replica.head.cancel(request_id)
        self.live.remove(request_id)
        del self.replica.deltas[request_id], self.replica.requests[request_id]

    @precondition(lambda self: self.results and len(self.replica.stages) > 1)
    @rule()
    def fail(self) -> None:
        assert not self.replica.head.fail("it broke")
        self.lose_steps()

    @rule()
    def restart(self) -> None:
        self.replica.head.restart()
        self.lose_steps()

    @rule()
    def evict(self) -> None:
        self.replica.cache.evict(NOBODY)

    @rule(wait_s=st.sampled_from([0.0, 0.05, 20.0]))
    def expire(self, wait_s: float) -> None:
        self.replica.now += wait_s
        self.replica.head.expire(self.replica.now)
        self.settle()

    def shorten_rows(self) -> None:
        cache = self.replica.cache
        cache.interval = cache.interval or self.longest_row

    def lose_steps(self) -> None:
        self.shorten_rows()
        self.results.clear()
        self.last_step = 0
        self.settle()

    def settle(self) -> None:
        self.replica.collect()
        for request_id in list(self.live):
            if any(delta.finish for delta in self.replica.deltas[request_id]):
                self.live.remove(request_id)
                self.check_request(self.replica.requests[request_id])

    def check_request(self, request: Request) -> None:
        deltas = self.replica.deltas[request.id]
        finish = deltas[-1].finish
        assert finish is not None
        for index in range(request.n):
            self.check_answer(request, index, is_whole=finish.reason not in BROKEN)
        assert finish.output_tokens == sum(len(delta.tokens) for delta in deltas)
        assert 0 <= finish.cached_tokens < len(request.prompt)
        if finish.reason in BROKEN:
            assert finish.message == BROKEN[finish.reason]
            assert deltas[-1].ended is None
        else:
            assert deltas[-1].ended == finish.reason
        if request.prompt_logprobs is not None:
            self.check_scores(request, finish.cached_tokens)
        self.check_embedding(request, finish.cached_tokens)

    def check_answer(self, request: Request, index: int, *, is_whole: bool) -> None:
        found, wanted = self.replica.tokens(request.id, index), self.replica.expected(request.id, index)
        assert found == (wanted if is_whole else wanted[: len(found)])
        ends = [delta.ended for delta in self.replica.deltas[request.id] if delta.index == index and delta.ended]
        assert len(ends) == (len(found) == len(wanted))
        if request.logprobs is not None:
            tokens = [*request.prompt, *found]
            told = expect_logprobs(self.replica.toy, tokens, len(request.prompt), request.logprobs)
            assert self.replica.logprobs(request.id, index) == told

    def check_scores(self, request: Request, num_cached: int) -> None:
        assert num_cached == 0
        assert request.prompt_logprobs is not None
        first, *others = self.replica.deltas[request.id]
        told = expect_logprobs(self.replica.toy, request.prompt, 1, request.prompt_logprobs)
        assert list(first.prompt_logprobs) == (told if first.tokens else [])
        assert not any(delta.prompt_logprobs for delta in others)

    def check_embedding(self, request: Request, num_cached: int) -> None:
        first, *others = self.replica.deltas[request.id]
        expected = expect_embedding(self.replica.toy, request) if first.tokens else None
        assert (None if first.embedding is None else read_numbers(first.embedding)) == expected
        assert not any(delta.embedding for delta in others)
        assert not (num_cached and request.pooling == "mean")

    @invariant()
    def the_ledger_is_the_stage(self) -> None:
        if not hasattr(self, "replica"):
            return
        for stage in self.replica.stages:
            for memory in stage.layers.memories:
                memory.pool.check()
        if None in self.results:  # the stage is as before the step, and the head does not know it yet
            return
        if not self.replica.cache.has_edits and self.replica.head.epoch == self.replica.chain.epoch:
            assert self.replica.ledger.free == tuple(stage.free for stage in self.replica.stages)

    @invariant()
    def what_is_counted_is_so(self) -> None:
        if not hasattr(self, "replica"):
            return
        head, states = self.replica.head, self.replica.states.values()
        head.check()
        assert head.stats().running == sum(bool(state.running) for state in states)
        deadlines = [state.deadline for state in states if state.deadline is not None]
        assert head.next_deadline() == min(deadlines, default=None)
        assert self.replica.chain.largest_header <= self.header_bytes

    def teardown(self) -> None:
        if not hasattr(self, "replica"):
            return
        self.finish_requests()
        assert not self.live, "a request never ends"
        assert all(sum(bool(delta.finish) for delta in told) == 1 for told in self.replica.deltas.values())
        self.replica.head.drop_stored()
        self.finish_requests()
        for stage in self.replica.stages:
            if self.replica.head.epoch == self.replica.chain.epoch:
                assert stage.free == tuple(pool.num_pages for pool in stage.info.pools), "pages are never freed"

    def finish_requests(self) -> None:
        for _ in range(3000):
            if not self.live and self.replica.head.is_settled:
                break
            self.release()
            self.replica.give_masks()
            self.plan()
            while self.results:
                self.absorb()


Traffic.TestCase.settings = settings(stateful_step_count=40)
TestHeadUnderTraffic = Traffic.TestCase
