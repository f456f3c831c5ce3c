from __future__ import annotations

from dataclasses import replace

import pytest

from parallax_core.api import Grammar, InvalidRequest, RequestId, SeqId, StageBatch, StageResult, Unavailable
from parallax_core.base.errors import StageLost
from parallax_core.builtin.batching import WorkConserving
from parallax_core.engine.head import Head
from parallax_core.engine.inflight import PlannedStep
from parallax_core.engine.limits import Limits
from parallax_core.testing.toy import Toy
from parallax_policies.batching import Delay, Size, SizeOrDelay
from tests.support.grammars import SumCompiler
from tests.unit.engine.replica import LUCKY, NOBODY, START, TOY, Replica, make_request, open_stages

DEEP = Toy(("full",) * 3)


def plan_all(head: Head) -> list[PlannedStep]:
    """Plan until the head wants a result first."""
    steps = []
    while step := head.plan(0.0):
        steps.append(step)
    return steps


def test_head_gives_the_tokens_of_the_sequential_run() -> None:
    replica = Replica()
    for prompt in ([1, 2, 3], list(range(20)), [5]):
        replica.ask(prompt)
        replica.ask(prompt, sampling=LUCKY)
    replica.run()
    replica.check_tokens()


def test_split_gives_the_tokens_of_the_whole() -> None:
    toy = Toy(("full", "window", "state", "latent", "full"))
    for num_stages in range(1, 6):
        replica = Replica(*open_stages(toy, num_stages))
        for number in range(4):
            replica.ask(range(number, 12), 6, sampling=LUCKY)
        replica.run()
        replica.check_tokens()


def test_head_says_how_a_request_ended_and_what_it_cost() -> None:
    replica = Replica()
    request_id = replica.ask([1, 2, 3])
    replica.run()
    *before, last = replica.deltas[request_id]
    assert [(delta.ended, delta.finish) for delta in before] == [(None, None)] * 3
    assert last.ended == "length"
    assert last.finish is not None
    assert (last.finish.reason, last.finish.prompt_tokens, last.finish.output_tokens) == ("length", 3, 4)


def test_head_stops_at_a_stop_token_which_has_no_text() -> None:
    answer = TOY.continuation([1, 2, 3], 4)
    replica = Replica()
    request_id = replica.ask([1, 2, 3], stop_ids=frozenset({answer[1]}))
    replica.run()
    assert replica.tokens(request_id) == answer[:2]
    assert replica.text(request_id) == f"<{answer[0]}>"
    assert replica.reason(request_id) == replica.deltas[request_id][-1].ended == "stop"


def test_head_stops_at_a_stop_string_across_tokens() -> None:
    answer = TOY.continuation([1, 2, 3], 4)
    replica = Replica()
    request_id = replica.ask([1, 2, 3], stop=(f"{answer[0]}><{answer[1]}",))
    replica.run()
    assert replica.text(request_id) == "<"
    assert replica.reason(request_id) == "stop"
    assert replica.deltas[request_id][-1].stop_string == f"{answer[0]}><{answer[1]}"
    assert replica.tokens(request_id) == answer[:2]


def test_head_fills_the_context_when_no_limit_is_given() -> None:
    replica = Replica(TOY.open(context=10))
    request_id = replica.ask([1, 2, 3], max_tokens=None)
    replica.run()
    assert replica.tokens(request_id) == TOY.continuation([1, 2, 3], 7)


def test_head_refuses_a_request_it_has_already() -> None:
    head = Replica().head
    request = make_request([1])
    head.accept(request, 0)
    with pytest.raises(InvalidRequest, match="already been accepted"):
        head.accept(request, 0)


def test_head_refuses_when_too_many_wait_counting_requests() -> None:
    replica = Replica(limits=Limits(max_running=1, max_waiting=2))
    for number in range(3):
        replica.ask([number], n=5)
    with pytest.raises(Unavailable, match="0 requests are running and 3 are waiting"):
        replica.ask([4])
    replica.step()
    with pytest.raises(Unavailable, match="1 requests are running and 2 are waiting"):
        replica.ask([4])


def test_head_without_a_queue_takes_who_can_begin_at_once() -> None:
    replica = Replica(TOY.open(num_pages=40), limits=Limits(max_running=2, max_waiting=0))
    ids = [replica.ask([number]) for number in range(2)]
    with pytest.raises(Unavailable, match="0 requests are running and 2 are waiting"):
        replica.ask([2])
    replica.step()
    with pytest.raises(Unavailable, match="2 requests are running and 0 are waiting"):
        replica.ask([2])
    replica.run()
    ids.append(replica.ask([2]))
    replica.run()
    replica.check_tokens(*ids)


def test_request_ends_when_its_time_is_over_waiting_or_running() -> None:
    replica = Replica(limits=Limits(max_running=1))
    running = replica.ask([1], 20, timeout_s=1, n=2)
    waiting = replica.ask([2], 4, timeout_s=2)
    replica.step()
    assert replica.head.next_deadline() == START + 1
    replica.head.expire(START + 1)
    replica.collect()
    assert (replica.reason(running), replica.deltas[waiting]) == ("timeout", [])
    assert replica.deltas[running][-1].ended is None
    replica.head.expire(START + 2)
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
        replica.ask([number])
    assert replica.head.hold_s(START + after_s) == pytest.approx(held)
    assert (replica.head.plan(START + after_s) is None) == (held > 0)


def test_failed_step_of_several_stages_ends_its_requests_and_the_others_are_computed_again() -> None:
    replica = Replica(*open_stages(TOY, 2, num_pages=20, max_batch_tokens=2))
    ids = [replica.ask([number]) for number in range(3)]
    replica.step()
    [step, *_] = plan_all(replica.head)
    assert not replica.head.fail("it broke")
    replica.run()
    assert [row.seq for row in step.batch.rows] == [0, 2]
    assert [replica.reason(each) for each in ids] == ["error", "length", "error"]
    replica.check_tokens(ids[1])
    assert replica.head.epoch == 1


def test_stage_alone_goes_on_after_a_failed_step_and_keeps_what_is_stored() -> None:
    replica = Replica(TOY.open(num_pages=20, max_batch_tokens=8))
    stored = replica.ask([9] * 8, 1)
    replica.run()
    replica.check_tokens(stored)
    victims = [replica.ask([number]) for number in range(2)]
    failed = replica.fail()
    assert [replica.reason(victim) for victim in victims] == ["error", "error"]
    again = replica.ask([9] * 8, 1)
    step = replica.head.plan(0.1)
    assert step is not None
    assert (step.epoch, step.batch.step) == (0, failed.batch.step)
    assert [row.start for row in step.batch.rows] == [7], "the stored beginning is gone"
    replica.head.absorb(replica.compute(step), 0.1)
    replica.collect()
    replica.check_tokens(again)


def test_only_the_sequences_named_end_when_a_step_fails() -> None:
    replica = Replica(TOY.open(num_pages=20, max_batch_tokens=8))
    ids = [replica.ask([number, 5], 6) for number in range(3)]
    replica.step()
    step = replica.fail(SeqId(1))
    assert [row.seq for row in step.batch.rows] == [0, 1, 2]
    replica.run()
    assert [replica.reason(each) for each in ids] == ["length", "error", "length"]
    replica.check_tokens(ids[0], ids[2])
    assert sum(step.batch.rows == batch.rows for batch in replica.stage.batches) == 0


def test_failure_that_names_no_sequence_of_the_step_ends_all_of_it() -> None:
    replica = Replica(TOY.open(num_pages=20, max_batch_tokens=8))
    ids = [replica.ask([number], 6) for number in range(2)]
    replica.fail(SeqId(77))
    assert [replica.reason(each) for each in ids] == ["error", "error"]


def test_sequence_at_fault_is_no_beginning_for_others() -> None:
    replica = Replica(TOY.open(num_pages=40, max_batch_tokens=8))
    first = replica.ask([3] * 12, 1)
    replica.run()
    second = replica.ask([3] * 12, 4)
    replica.step()
    [row] = replica.fail(SeqId(1)).batch.rows
    assert (row.seq, row.start) == (1, 12)
    third = replica.ask([3] * 12, 4)
    step = replica.head.plan(0.1)
    assert step is not None
    assert [row.start for row in step.batch.rows] == [0]
    replica.head.absorb(replica.compute(step), 0.1)
    replica.run()
    replica.check_tokens(first, third)
    assert replica.reason(second) == "error"


def test_request_cancelled_while_its_step_fails_leaves_only_what_was_computed() -> None:
    replica = Replica(TOY.open(num_pages=20, max_batch_tokens=8))
    gone = replica.ask([4] * 12, 3)
    replica.step()
    step = replica.head.plan(0.1)
    assert step is not None
    assert [row.start for row in step.batch.rows] == [8]
    replica.head.cancel(gone)
    replica.chain.run(replace(step, batch=StageBatch(())))
    replica.head.fail("it broke")
    replica.collect()
    other = replica.ask([4] * 12, 3)
    step = replica.head.plan(0.1)
    assert step is not None
    assert [row.start for row in step.batch.rows] == [8]
    replica.head.absorb(replica.compute(step), 0.1)
    replica.run()
    replica.check_tokens(other)


def test_repaired_stage_costs_no_request_and_no_token() -> None:
    replica = Replica(*open_stages(DEEP, 3, num_pages=40))
    for number in range(3):
        replica.ask(range(number, 12), 5, sampling=LUCKY, n=2)
    for _ in range(6):
        replica.step()
    lost = plan_all(replica.head)
    assert lost
    assert all(replica.deltas.values()), "nobody had begun to answer"
    replica.head.restart()
    replica.run()
    replica.check_tokens()
    assert replica.head.epoch == 1


def test_repaired_pipeline_may_have_other_stages() -> None:
    replica = Replica(*open_stages(DEEP, 3, num_pages=40))
    request_id = replica.ask(range(12), 9)
    for _ in range(6):
        replica.step()
    after = Replica(*open_stages(DEEP, 2, page_size=3, num_pages=9))
    replica.head.restart([stage.info for stage in after.stages])
    replica.stages, replica.chain = after.stages, after.chain
    assert replica.head.max_length == 27
    replica.run()
    replica.check_tokens(request_id)


def test_every_step_has_the_next_number_of_its_epoch_even_one_without_rows() -> None:
    replica = Replica(TOY.open(max_batch_tokens=4))
    request_id = replica.ask([1, 2, 3])
    numbers = []
    for _ in range(2):
        step = replica.head.plan(0.0)
        assert step is not None
        numbers.append(step.batch.step)
        replica.head.absorb(replica.compute(step), 0.0)
    replica.head.cancel(request_id)
    replica.cache.evict(NOBODY)
    empty = replica.head.plan(0.0)
    assert empty is not None
    assert (empty.edits != (), empty.batch.rows) == (True, ())
    assert [*numbers, empty.batch.step] == [1, 2, 3]
    assert replica.head.plan(0.0) is None, "a step without rows is in flight too"
    replica.head.restart()
    replica.ask([5])
    again = replica.head.plan(0.0)
    assert again is not None
    assert (again.epoch, again.batch.step) == (1, 1)


def test_long_prompt_keeps_every_stage_busy() -> None:
    replica = Replica(*open_stages(DEEP, 3, num_pages=40, max_batch_tokens=4))
    request_id = replica.ask(range(30), 1)
    steps = plan_all(replica.head)
    assert [step.batch.rows[0].start for step in steps] == [0, 4, 8, 12]
    for step in steps:
        replica.head.absorb(replica.compute(step), 0.0)
    replica.run()
    replica.check_tokens(request_id)


def test_decodes_are_shared_out_among_the_stages() -> None:
    replica = Replica(*open_stages(DEEP, 3, num_pages=80))
    for number in range(6):
        replica.ask([number], 9)
    replica.step()
    steps = plan_all(replica.head)
    assert [len(step.batch.rows) for step in steps] == [2, 2, 2]
    for step in steps:
        replica.head.absorb(replica.compute(step), 0.0)
    replica.run()
    replica.check_tokens()


def test_result_without_a_step_means_a_lost_stage() -> None:
    with pytest.raises(StageLost, match="no step is in flight"):
        Replica().head.absorb(StageResult(), 0.0)


def is_settled(replica: Replica) -> bool:
    return replica.head.is_settled


def test_head_is_settled_while_the_stages_hold_what_it_says() -> None:
    replica = Replica(TOY.open(num_pages=40))
    assert is_settled(replica)
    replica.ask([1, 2, 3], 2)
    step = replica.head.plan(0.0)
    assert step is not None
    assert not is_settled(replica), "a step is on its way"
    replica.head.absorb(replica.compute(step), 0.0)
    replica.run()
    assert is_settled(replica)
    replica.cache.evict(NOBODY)
    assert not is_settled(replica), "a sequence is to be dropped"
    replica.step()
    assert is_settled(replica)


def test_all_requests_end_when_their_time_is_over() -> None:
    replica = Replica(TOY.open(num_pages=40))
    requests = [replica.ask([1, 2, 3], 6), replica.ask([4, 5], 6)]
    replica.step()
    replica.head.expire_all("no stage came back", 3.0)
    replica.collect()
    for request in requests:
        finish = replica.deltas[request][-1].finish
        assert finish is not None
        assert (finish.reason, finish.message) == ("timeout", "no stage came back")
    assert not replica.states
    assert replica.head.stats().requests_lost == 2


def test_grammar_of_a_request_that_has_ended_is_left_aside() -> None:
    replica = Replica(TOY.open(num_pages=40))
    replica.head.release(RequestId("gone"), SumCompiler().compile(Grammar(kind="json_object", source="3 9")))
    assert plan_all(replica.head) == []
