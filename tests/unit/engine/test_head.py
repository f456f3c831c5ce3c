from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parallax_core.api import (
    Delta,
    InvalidRequest,
    PoolInfo,
    Request,
    RequestId,
    Sampling,
    StageResult,
    Unavailable,
)
from parallax_core.base.errors import StageLost
from parallax_core.builtin.batching import Delay, Size, SizeOrDelay, WorkConserving
from parallax_core.builtin.preemption import LowestPriority, NewestFirst, Nobody
from parallax_core.engine.head import Head, Limits, Step
from parallax_core.node.host import StageHost
from tests.toy import VOCAB, ToyStage, continuation

NUMBERS = count()


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def make_request(  # noqa: PLR0913 -- as many as a request has
    prompt: list[int],
    max_tokens: int | None = 4,
    *,
    stop_ids: frozenset[int] = frozenset(),
    stop: tuple[str, ...] = (),
    priority: int = 0,
    timeout_s: float | None = None,
) -> Request:
    return Request(
        id=RequestId(str(next(NUMBERS))),
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        sampling=Sampling(),
        stop_ids=stop_ids,
        stop=stop,
        priority=priority,
        timeout_s=timeout_s,
    )


class Replica:
    """A head and its stages, run step by step, with a clock of their own.

    Every stage of the toy computes everything; what stages before the last say is only looked at for their pages.
    """

    def __init__(self, *stages: ToyStage, **options: object) -> None:
        self.stages = stages or (ToyStage(),)
        self.stage = self.stages[-1]
        self.hosts = [StageHost(stage) for stage in self.stages]
        self.head = Head([stage.info for stage in self.stages], decode, **options)  # type: ignore[arg-type]
        self.now = 0.0
        self.deltas: dict[RequestId, list[Delta]] = {}

    def submit(self, request: Request) -> RequestId:
        self.head.accept(request, self.now)
        self.deltas[request.id] = []
        return request.id

    def step(self) -> bool:
        """Run one step; return whether there was one."""
        self.now += 0.01
        step = self.head.plan(self.now)
        if step is not None:
            self.head.absorb(self.compute(step), self.now)
        self.collect()
        return step is not None

    def compute(self, step: Step) -> StageResult:
        return [host.run(step) for host in self.hosts][-1]

    def collect(self) -> None:
        for request_id, delta in self.head.take_deltas():
            self.deltas[request_id].append(delta)
        self.head.check()

    def run(self) -> None:
        while self.step():
            pass

    def tokens(self, request_id: RequestId) -> list[int]:
        return [token for delta in self.deltas[request_id] for token in delta.tokens]

    def text(self, request_id: RequestId) -> str:
        return "".join(delta.text for delta in self.deltas[request_id])

    def reason(self, request_id: RequestId) -> str:
        *before, last = self.deltas[request_id]
        assert not any(delta.finish for delta in before)
        assert last.finish is not None
        return last.finish.reason


def test_head_gives_the_tokens_of_the_sequential_run() -> None:
    replica = Replica()
    prompts = [[1, 2, 3], list(range(20)), [5]]
    ids = [replica.submit(make_request(prompt)) for prompt in prompts]
    replica.run()
    assert [replica.tokens(each) for each in ids] == [continuation(prompt, 4) for prompt in prompts]


def test_head_says_how_a_request_ended_and_what_it_cost() -> None:
    replica = Replica()
    request_id = replica.submit(make_request([1, 2, 3]))
    replica.run()
    finish = replica.deltas[request_id][-1].finish
    assert finish is not None
    assert (finish.reason, finish.prompt_tokens, finish.output_tokens) == ("length", 3, 4)


def test_head_stops_at_a_stop_token_which_has_no_text() -> None:
    answer = continuation([1, 2, 3], 4)
    replica = Replica()
    request_id = replica.submit(make_request([1, 2, 3], stop_ids=frozenset({answer[1]})))
    replica.run()
    assert replica.tokens(request_id) == answer[:2]
    assert replica.text(request_id) == f"<{answer[0]}>"
    assert replica.reason(request_id) == "stop"


def test_head_stops_at_a_stop_string_across_tokens() -> None:
    answer = continuation([1, 2, 3], 4)
    replica = Replica()
    request_id = replica.submit(make_request([1, 2, 3], stop=(f"{answer[0]}><{answer[1]}",)))
    replica.run()
    assert replica.text(request_id) == "<"
    assert replica.reason(request_id) == "stop"
    assert replica.tokens(request_id) == answer[:2]


def test_head_decodes_before_it_prefills() -> None:
    replica = Replica(ToyStage(max_batch_tokens=4))
    replica.submit(make_request([1]))
    replica.step()
    replica.submit(make_request(list(range(12))))
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [1, 3]


def test_head_refuses_what_can_never_fit() -> None:
    head = Replica(ToyStage(num_pages=4, page_size=4)).head
    with pytest.raises(InvalidRequest, match="16 in all") as caught:
        head.accept(make_request(list(range(16))), 0)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="more than the 16") as caught:
        head.accept(make_request([1, 2], max_tokens=15), 0)
    assert caught.value.param == "max_tokens"
    with pytest.raises(InvalidRequest, match="empty"):
        head.accept(make_request([]), 0)
    request = make_request([1])
    head.accept(request, 0)
    with pytest.raises(InvalidRequest, match="here already"):
        head.accept(request, 0)


def test_head_fills_the_context_when_no_limit_is_given() -> None:
    replica = Replica(ToyStage(context=10))
    request_id = replica.submit(make_request([1, 2, 3], max_tokens=None))
    replica.run()
    assert replica.tokens(request_id) == continuation([1, 2, 3], 7)


def test_head_refuses_when_too_many_wait() -> None:
    replica = Replica(limits=Limits(max_waiting=2))
    replica.submit(make_request([1]))
    replica.submit(make_request([2]))
    with pytest.raises(Unavailable, match="2 requests are waiting"):
        replica.submit(make_request([3]))


def test_finished_request_serves_the_next_that_begins_like_it() -> None:
    replica = Replica(ToyStage(num_pages=20))
    first = replica.submit(make_request([1, 2, 3, 4, 5, 6]))
    replica.run()
    num_before = sum(len(row.tokens) for batch in replica.stage.batches for row in batch.rows)
    again = replica.submit(make_request([1, 2, 3, 4, 5, 6]))
    longer = replica.submit(make_request([1, 2, 3, 4, 5, 6, *replica.tokens(first), 9]))
    replica.run()
    assert replica.tokens(again) == replica.tokens(first)
    assert replica.tokens(longer) == continuation([1, 2, 3, 4, 5, 6, *replica.tokens(first), 9], 4)
    num_tokens = sum(len(row.tokens) for batch in replica.stage.batches for row in batch.rows) - num_before
    assert num_tokens == (1 + 3) + (2 + 3)


def test_running_request_serves_others_that_begin_like_it() -> None:
    replica = Replica(ToyStage(num_pages=20, max_batch_tokens=16))
    prompt = list(range(10))
    first = replica.submit(make_request(prompt, 9))
    replica.step()
    second = replica.submit(make_request([*prompt, 50], 3))
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [1, 1]
    replica.run()
    assert replica.tokens(first) == continuation(prompt, 9)
    assert replica.tokens(second) == continuation([*prompt, 50], 3)


def test_state_is_forked_at_its_end_or_not_at_all() -> None:
    state = PoolInfo(kind="state", page_size=1, num_pages=8)
    replica = Replica(ToyStage(pools=(state,)))
    first = replica.submit(make_request([1, 2, 3]))
    replica.run()
    ended = [1, 2, 3, *replica.tokens(first)[:-1]]
    earlier = replica.submit(make_request([1, 2, 9]))
    replica.run()
    assert replica.stage.forks == []
    later = replica.submit(make_request([*ended, 5, 6]))
    replica.run()
    assert [fork.length for fork in replica.stage.forks] == [len(ended)]
    assert replica.tokens(earlier) == continuation([1, 2, 9], 4)
    assert replica.tokens(later) == continuation([*ended, 5, 6], 4)


def test_who_is_stored_gives_way_before_who_runs() -> None:
    replica = Replica(ToyStage(num_pages=4, page_size=4))
    first = replica.submit(make_request([1, 2, 3, 4, 5, 6]))
    replica.run()
    second = replica.submit(make_request([9] * 10))
    replica.run()
    assert replica.reason(first) == replica.reason(second) == "length"
    assert replica.tokens(second) == continuation([9] * 10, 4)


def test_preempted_request_goes_on_with_the_same_tokens() -> None:
    replica = Replica(ToyStage(num_pages=4, page_size=2))
    urgent = replica.submit(make_request([1, 2], 5, priority=-1))
    other = replica.submit(make_request([3, 4], 5))
    replica.run()
    opened = [row for batch in replica.stage.batches for row in batch.rows if row.start == 0]
    assert len(opened) > 2, "nobody was preempted"
    assert replica.tokens(urgent) == continuation([1, 2], 5)
    assert replica.tokens(other) == continuation([3, 4], 5)


def test_without_preemption_who_finds_no_page_ends_and_the_other_goes_on() -> None:
    replica = Replica(ToyStage(num_pages=4, page_size=2), preemption=Nobody())
    first = replica.submit(make_request([1, 2], 5))
    second = replica.submit(make_request([3, 4], 5))
    replica.run()
    assert replica.tokens(first) == continuation([1, 2], 5)
    assert replica.reason(second) == "error"


def test_urgent_requests_come_first_and_waiting_makes_urgent() -> None:
    replica = Replica(limits=Limits(max_running=1))
    late = replica.submit(make_request([1], 1, priority=1))
    soon = replica.submit(make_request([2], 1))
    replica.step()
    assert (replica.deltas[late], bool(replica.deltas[soon])) == ([], True)
    replica.now = 30.0
    newer = replica.submit(make_request([3], 1))
    replica.step()
    assert (bool(replica.deltas[late]), replica.deltas[newer]) == (True, [])


def test_request_ends_when_its_time_is_over_waiting_or_running() -> None:
    replica = Replica(limits=Limits(max_running=1))
    running = replica.submit(make_request([1], 20, timeout_s=1))
    waiting = replica.submit(make_request([2], 4, timeout_s=2))
    replica.step()
    assert replica.head.next_deadline() == 1
    replica.head.expire(1.0)
    replica.collect()
    assert (replica.reason(running), replica.deltas[waiting]) == ("error", [])
    replica.head.expire(2.0)
    replica.collect()
    finish = replica.deltas[waiting][-1].finish
    assert finish is not None
    assert finish.message == "timed out after 2 seconds"
    assert replica.head.next_deadline() is None


@pytest.mark.parametrize(
    ("policy", "num_ready", "after_s", "held"),
    [
        (WorkConserving(), 1, 0.0, 0.0),
        (Size(2), 1, 0.1, 0.4),
        (Size(2), 2, 0.1, 0.0),
        (Size(2), 1, 0.5, 0.0),
        (Delay(0.2), 1, 0.0, 0.2),
        (Delay(0.2), 9, 0.05, 0.15),
        (Delay(0.2), 1, 0.2, 0.0),
        (SizeOrDelay(2, 0.2), 1, 0.1, 0.1),
        (SizeOrDelay(2, 0.2), 2, 0.0, 0.0),
        (Delay(9.0), 1, 0.5, 0.0),
    ],
)
def test_policy_holds_a_step_back_but_never_beyond_the_limit(
    policy: WorkConserving | Size | Delay | SizeOrDelay, num_ready: int, after_s: float, held: float
) -> None:
    replica = Replica(batching=policy, limits=Limits(max_hold_s=0.5))
    for number in range(num_ready):
        replica.submit(make_request([number]))
    assert replica.head.hold_s(after_s) == pytest.approx(held)
    assert (replica.head.plan(after_s) is None) == (held > 0)


def test_failed_step_ends_its_requests_and_the_others_are_computed_again() -> None:
    replica = Replica(ToyStage(num_pages=20, max_batch_tokens=2))
    first = replica.submit(make_request([1, 2]))
    replica.step()
    other = replica.submit(make_request([3, 4, 5]))
    step = replica.head.plan(0.1)
    assert step is not None
    assert len(step.batch.rows) == 2
    replica.head.cancel(first)
    replica.head.fail("it broke")
    replica.collect()
    assert replica.reason(other) == "error"
    third = replica.submit(make_request([1, 2]))
    replica.run()
    assert replica.tokens(third) == continuation([1, 2], 4)


def test_requests_outside_a_failed_step_survive_it() -> None:
    replica = Replica(ToyStage(num_pages=20, max_batch_tokens=2))
    victims = [replica.submit(make_request([number])) for number in range(2)]
    survivor = replica.submit(make_request([7, 8]))
    replica.step()
    assert replica.head.plan(0.1) is not None
    replica.head.fail("it broke")
    replica.run()
    assert [replica.reason(victim) for victim in victims] == ["error", "error"]
    assert replica.tokens(survivor) == continuation([7, 8], 4)
    assert replica.head.epoch == 1


def test_stage_whose_pages_differ_is_lost() -> None:
    replica = Replica()
    replica.submit(make_request([1]))
    assert replica.head.plan(0) is not None
    with pytest.raises(StageLost, match="free pages"):
        replica.head.absorb(StageResult(free=(3,)), 0)


def test_long_prompt_keeps_every_stage_busy() -> None:
    replica = Replica(*(ToyStage(num_pages=40, max_batch_tokens=4) for _ in range(3)))
    request_id = replica.submit(make_request(list(range(30)), 1))
    steps = [step for _ in range(5) if (step := replica.head.plan(0.0))]
    assert [step.batch.rows[0].start for step in steps] == [0, 4, 8, 12]
    for step in steps:
        replica.head.absorb(replica.compute(step), 0.0)
    replica.run()
    assert replica.tokens(request_id) == continuation(list(range(30)), 1)


def test_decodes_are_shared_out_among_the_stages() -> None:
    replica = Replica(*(ToyStage(num_pages=80) for _ in range(3)))
    ids = [replica.submit(make_request([number], 9)) for number in range(6)]
    replica.step()
    steps = [step for _ in range(5) if (step := replica.head.plan(0.0))]
    assert [len(step.batch.rows) for step in steps] == [2, 2, 2]
    for step in steps:
        replica.head.absorb(replica.compute(step), 0.0)
    replica.run()
    assert [replica.tokens(each) for each in ids] == [continuation([number], 9) for number in range(6)]


class Traffic(RuleBasedStateMachine):
    """Random arrivals, steps, cancels and failures over tiny pools of every kind, also while steps are in flight."""

    @initialize(
        kind=st.sampled_from(["full", "window", "state", "both"]),
        page_size=st.integers(1, 4),
        rewind=st.integers(0, 3),
        num_stages=st.integers(1, 4),
        shares=st.booleans(),
        preemption=st.sampled_from([NewestFirst(), LowestPriority()]),
    )
    def begin(  # noqa: PLR0913, PLR0917 -- each a kind of replica
        self,
        kind: str,
        page_size: int,
        rewind: int,
        num_stages: int,
        shares: bool,
        preemption: NewestFirst | LowestPriority,
    ) -> None:
        full = PoolInfo(kind="full", page_size=page_size, num_pages=-(-18 // page_size), shares=shares)
        window = PoolInfo(kind="window", page_size=2, num_pages=12, window=3, rewind=rewind)
        state = PoolInfo(kind="state", page_size=1, num_pages=4)
        pools = {"full": (full,), "window": (full, window), "state": (state,), "both": (full, window, state)}[kind]
        self.window = 3 if window in pools else 0
        stages = [ToyStage(pools=pools, max_batch_tokens=5, context=15)]
        for size in range(1, num_stages):
            other = PoolInfo(kind="latent", page_size=size, num_pages=-(-20 // size))
            stages.insert(0, ToyStage(pools=(other,), max_batch_tokens=7, context=15))
        self.replica = Replica(*stages, limits=Limits(max_running=4), preemption=preemption)
        self.live: dict[RequestId, tuple[list[int], int]] = {}
        self.results: deque[StageResult] = deque()

    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=9),
        length=st.integers(1, 6),
        priority=st.integers(-2, 2),
    )
    def submit(self, prompt: list[int], length: int, priority: int) -> None:
        request_id = self.replica.submit(make_request(prompt, length, priority=priority))
        self.live[request_id] = (prompt, length)

    @rule()
    def plan(self) -> None:
        self.replica.now += 0.01
        step = self.replica.head.plan(self.replica.now)
        if step is not None:
            self.results.append(self.replica.compute(step))
        self.settle()

    @precondition(lambda self: self.results)
    @rule()
    def absorb(self) -> None:
        self.replica.head.absorb(self.results.popleft(), self.replica.now)
        self.settle()

    @precondition(lambda self: self.live)
    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        request_id = list(self.live)[pick % len(self.live)]
        self.replica.head.cancel(request_id)
        del self.live[request_id], self.replica.deltas[request_id]

    @precondition(lambda self: self.results)
    @rule()
    def fail(self) -> None:
        self.results.clear()
        self.replica.head.fail("it broke")
        self.settle()

    def settle(self) -> None:
        self.replica.collect()
        for request_id in list(self.live):
            if (deltas := self.replica.deltas[request_id]) and deltas[-1].finish:
                prompt, length = self.live.pop(request_id)
                wanted = continuation(prompt, length, VOCAB, self.window)
                if self.replica.reason(request_id) == "error":
                    assert deltas[-1].finish.message == "it broke"
                    wanted = wanted[: len(self.replica.tokens(request_id))]
                assert self.replica.tokens(request_id) == wanted

    @invariant()
    def the_ledger_is_the_stage(self) -> None:
        if not hasattr(self, "replica") or self.replica.head._store._edits:
            return
        if self.replica.head.epoch == self.replica.hosts[0]._epoch:
            assert self.replica.head._ledger.free == tuple(stage.free for stage in self.replica.stages)

    def teardown(self) -> None:
        if not hasattr(self, "replica"):
            return
        while self.results:
            self.absorb()
        for _ in range(2000):
            if not self.live:
                break
            self.plan()
            while self.results:
                self.absorb()
        assert not self.live, "a request never ends"


Traffic.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestHeadUnderTraffic = Traffic.TestCase
