"""The work of a head per step does not grow with the waiting requests, and followers do start."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import replace
from itertools import pairwise
from types import FrameType

import pytest

from parallax_core.api import Holder, RequestId, SeqId, StageResult
from parallax_core.builtin.preemption import LowestPriority
from parallax_core.contracts.stage import PoolKind
from parallax_core.engine.head import Head
from parallax_core.engine.limits import Limits
from parallax_core.engine.scheduler import MOST_BEGUN
from parallax_core.engine.sequence import RequestContext, Sequence
from parallax_core.engine.timing import Timeline
from parallax_core.engine.waiting import WaitingQueue
from parallax_core.testing.toy import Toy
from parallax_policies.batching import Delay
from parallax_policies.preemption import NoPreemption
from tests.unit.engine.replica import LUCKY, START, TOY, Replica, decode, make_request


def count_calls(work: Callable[[], object]) -> int:
    """Return the number of function calls in ``work``, C functions included."""
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    gc.disable()  # what it finds is not the work's
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def make_busy(num_waiting: int, num_pages: int) -> Replica:
    """Return a replica with two running requests, and the given number of waiting ones."""
    replica = Replica(
        TOY.open(num_pages=num_pages, page_size=20, context=40, max_batch_tokens=8),
        limits=Limits(max_running=3, max_waiting=num_waiting + 2),
    )
    for number in range(2):
        replica.ask([number], 15)
    replica.step()
    for number in range(num_waiting):
        replica.ask([number % 90] * 19, 20, priority=number % 3, timeout_s=100.0 + number)
    replica.step()
    return replica


@pytest.mark.parametrize("num_pages", [2, 3], ids=["for-pages", "for-a-place"])
def test_step_costs_the_same_however_many_wait(num_pages: int) -> None:
    def run_step(replica: Replica) -> None:
        head = replica.head
        head.expire(1.0)
        head.hold_s(1.0)
        head.next_deadline()
        step = head.plan(1.0)
        assert step is not None
        assert len(step.batch.rows) == num_pages
        results.append((replica, replica.compute(step)))

    def absorb(replica: Replica, result: StageResult) -> None:
        replica.head.absorb(result, 1.0)
        replica.head.stats()

    few, many = make_busy(4, num_pages), make_busy(1000, num_pages)
    results: list[tuple[Replica, StageResult]] = []
    for _ in range(3):
        plans = [count_calls(lambda each=each: run_step(each)) for each in (few, many)]  # type: ignore[misc]
        absorbs = [count_calls(lambda each=each: absorb(*each)) for each in results]  # type: ignore[misc]
        results.clear()
        assert plans[0] == plans[1]
        assert absorbs[0] == absorbs[1]


def test_accepting_costs_the_same_however_many_wait() -> None:
    heads = [make_busy(number, 3).head for number in (4, 1000)]
    requests = [make_request([1] * 19, 20, timeout_s=1e6) for _ in heads]
    for head in heads:
        head.limits = replace(head.limits, max_waiting=2000)
    costs = [
        count_calls(lambda each=each: each[0].accept(each[1], 5.0))  # type: ignore[misc]
        for each in zip(heads, requests, strict=True)
    ]
    assert costs[0] == costs[1]


def test_hold_is_over_when_the_one_that_has_waited_longest_has_waited_enough() -> None:
    replica = Replica(batching=Delay(0.4), limits=Limits(max_running=1))
    first = replica.ask([1], 2)
    replica.now += 0.3
    replica.ask([2], 2)
    assert replica.head.hold_s(replica.now) == pytest.approx(0.1)
    replica.head.cancel(first)
    assert replica.head.hold_s(replica.now) == pytest.approx(0.4)


def test_deadlines_come_in_their_order_and_go_with_their_requests() -> None:
    replica = Replica(limits=Limits(max_running=1))
    late, soon, never = (replica.ask([1], timeout_s=timeout_s) for timeout_s in (9.0, 3.0, None))
    assert replica.head.next_deadline() == START + 3.0
    replica.head.cancel(soon)
    assert replica.head.next_deadline() == START + 9.0
    replica.head.expire(START + 9.0)
    replica.collect()
    assert replica.reason(late) == "timeout"
    assert replica.head.next_deadline() is None
    assert replica.deltas[never] == []


class Asked:
    """Lets the least urgent give way, and notes of how many it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def choose(self, holders: Listing[Holder]) -> RequestId | None:
        self.asked.append(len(holders))
        return LowestPriority().choose(holders)


def test_policy_is_asked_only_so_much_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.engine.victims.MOST_WEIGHED", 200)
    policy = Asked()
    replica = Replica(
        TOY.open(num_pages=80, page_size=1, context=16, max_batch_tokens=100),
        preemption=policy,
        limits=Limits(max_running=100),
    )
    ids = [replica.ask([number], 3) for number in range(80)]
    replica.step()
    assert not policy.asked
    replica.step()
    assert policy.asked == [79, 77, 75], "it was shown those below the one in need, and no one twice"
    assert len(replica.stage.batches[-1].rows) == 3
    replica.run()
    replica.check_tokens(*ids)


def test_policy_is_asked_on_where_nothing_else_can_be_done() -> None:
    """A step without any row is none: the limit holds only once there is one."""
    replica = Replica(
        TOY.open(num_pages=40, page_size=1, context=32, max_batch_tokens=100),
        preemption=NoPreemption(),
        limits=Limits(max_running=100),
    )
    ids = [replica.ask([number], 2) for number in range(40)]
    replica.run()
    ended = [replica.reason(request_id) for request_id in ids]
    assert ended.count("length") >= 20
    assert set(ended) == {"length", "error"}


def open_wide(toy: Toy = TOY, max_batch_tokens: int = 32) -> Replica:
    return Replica(
        toy.open(num_pages=2000, context=80, max_batch_tokens=max_batch_tokens),
        limits=Limits(min_shared=4, max_running=100),
    )


PROMPT = list(range(20))


def test_prompt_of_many_requests_that_arrive_together_is_computed_once() -> None:
    replica = open_wide()
    for _ in range(64):
        replica.ask(PROMPT, 3, sampling=LUCKY)
    replica.run()
    replica.check_tokens()
    assert replica.count_tokens() == len(PROMPT) + 63 + 64 * 2


@pytest.mark.parametrize("max_batch_tokens", [7, 16, 200])
def test_beginning_of_prompts_that_arrive_together_is_computed_once(max_batch_tokens: int) -> None:
    replica = open_wide(max_batch_tokens=max_batch_tokens)
    for number in range(30):
        replica.ask([*PROMPT, 50 + number], 2)
    replica.run()
    replica.check_tokens()
    assert replica.count_tokens() == len(PROMPT) + 30 + 30


def test_answers_of_requests_that_arrive_together_share_one_prompt() -> None:
    replica = open_wide()
    for _ in range(5):
        replica.ask(PROMPT, 3, n=3, sampling=LUCKY)
    replica.run()
    replica.check_tokens()
    assert replica.count_tokens() == len(PROMPT) + 4 + 15 * 2


@pytest.mark.parametrize("end", ["cancel", "fail", "timeout", "preempt", "restart"])
def test_who_waited_for_another_goes_on_when_that_one_does_not(end: str) -> None:
    replica = open_wide()
    replica.cache.interval = 8  # rows end early, as they do where pages are short
    first = replica.ask(PROMPT, 3, timeout_s=5.0 if end == "timeout" else None)
    others = [replica.ask(PROMPT, 3, sampling=LUCKY) for _ in range(6)]
    replica.step()
    assert replica.head.stats().waiting == 6
    head = replica.head
    match end:
        case "cancel":
            head.cancel(first)
        case "fail":
            replica.fail()
        case "timeout":
            head.expire(START + 6.0)
        case "preempt":
            replica.cache.discard(replica.states[first].answers[0])
        case "restart":
            head.restart()
    replica.run()
    replica.check_tokens(*others)
    if end in {"cancel", "timeout"}:
        assert replica.count_tokens() == len(PROMPT) + 5 + 6 * 2, "what was computed is lost"


def test_more_urgent_request_waits_for_no_other() -> None:
    replica = open_wide()
    replica.cache.interval = 8
    replica.ask(PROMPT, 3)
    replica.step()
    urgent = replica.ask(PROMPT, 3, priority=-1)
    replica.step()
    assert [fork.length for fork in replica.stage.forks if fork.spec] == [8], "it begins as far as the other one is"
    replica.run()
    replica.check_tokens(urgent)


def test_little_in_common_is_not_waited_for() -> None:
    replica = open_wide()
    for number in range(2):
        replica.ask([1, 2, 3, 50 + number, 4, 5], 2)
    replica.step()
    assert len(replica.stage.batches[-1].rows) == 2


def test_request_that_wants_its_prompt_scored_waits_for_no_other() -> None:
    replica = open_wide()
    ids = [replica.ask(PROMPT[:10], 2, prompt_logprobs=0) for _ in range(2)]
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [10, 10]
    replica.run()
    replica.check_tokens(*ids)


@pytest.mark.parametrize("kinds", [("window",), ("state",), ("full", "window", "state")])
def test_where_sequences_cannot_go_back_nobody_waits_and_all_is_as_if_alone(kinds: tuple[str, ...]) -> None:
    replica = open_wide(Toy(kinds))  # type: ignore[arg-type]
    for _ in range(10):
        replica.ask(PROMPT, 3, n=2, sampling=LUCKY)
    replica.step()
    assert len(replica.queue.list_first(100)) == len(replica.queue), "one follows another"
    replica.run()
    replica.check_tokens()


def make_sequence(number: int) -> Sequence:
    request = make_request([number])
    timeline = Timeline(float(number), latest=float(number))
    return Sequence(RequestContext(request=request, max_output=1, decode=decode, timeline=timeline, number=number))


def test_sequence_that_waits_for_another_waits_once_whatever_is_heard_of_it_meanwhile() -> None:
    queue, source = WaitingQueue(), SeqId(7)
    first, second = make_sequence(1), make_sequence(2)
    for sequence in (second, first):
        queue.add(sequence)
    assert queue.first() is first
    queue.follow(first, source, 5)
    queue.add(first)
    assert (queue.first(), len(queue)) == (second, 2)
    queue.note_length(source, 4)
    assert queue.first() is second
    queue.note_length(source, 5)
    assert queue.first() is first
    queue.follow(first, source, 9)
    queue.follow(second, source, 9)
    queue.discard(first)
    queue.note_end(source)
    assert (queue.first(), len(queue)) == (second, 1)


def test_head_has_room_for_as_many_requests_as_it_says_whatever_waits_for_what() -> None:
    replica = open_wide()
    replica.cache.interval = 8
    for _ in range(8):
        replica.ask(PROMPT, 3)
    replica.step()
    head: Head = replica.head
    assert len(replica.queue) == 7
    assert (head.stats().running, head.stats().waiting) == (1, 7)


@pytest.mark.parametrize("kind", ["full", "window", "state"])
def test_only_so_many_answers_begin_with_one_step(kind: PoolKind) -> None:
    replica = Replica(
        Toy((kind,), window=64).open(num_pages=2000, max_batch_tokens=512),
        limits=Limits(max_running=600),
    )
    requests = [replica.ask([number, 1, 2], 2, n=60) for number in range(10)]
    begun = [0]
    while replica.step():
        begun.append(sum(60 for each in requests if replica.deltas[each]))
    assert max(after - before for before, after in pairwise(begun)) <= MOST_BEGUN
    replica.check_tokens()


def test_answers_to_one_request_share_the_memory_of_its_prompt() -> None:
    replica = Replica(TOY.open(num_pages=20_000, context=50_000, max_batch_tokens=50_000))
    replica.ask([1] * 40_000, 2, n=100)
    step = replica.head.plan(0.0)
    assert step is not None
    result = replica.compute(step)
    tracemalloc.start()
    replica.head.absorb(result, 0.0)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2_000_000  # and 32,000,000 if each answer had a list of it
