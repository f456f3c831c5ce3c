from __future__ import annotations

from parallax_core.engine.limits import Limits
from parallax_policies.preemption import NoPreemption
from tests.unit.engine.replica import LUCKY, TOY, Replica


def test_decodes_come_before_prefills() -> None:
    replica = Replica(TOY.open(max_batch_tokens=4))
    replica.ask([1])
    replica.step()
    replica.ask(range(12))
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [1, 3]


def test_urgent_requests_come_first_and_waiting_makes_urgent() -> None:
    replica = Replica(limits=Limits(max_running=1))
    late = replica.ask([1], 1, priority=1)
    soon = replica.ask([2], 1)
    replica.step()
    assert (replica.deltas[late], bool(replica.deltas[soon])) == ([], True)
    replica.now += 30.0
    newer = replica.ask([3], 1)
    replica.step()
    assert (bool(replica.deltas[late]), replica.deltas[newer]) == (True, [])


def test_who_is_stored_gives_way_before_who_runs() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=4))
    first = replica.ask([1, 2, 3, 4, 5, 6])
    replica.run()
    second = replica.ask([9] * 10)
    replica.run()
    assert replica.reason(first) == replica.reason(second) == "length"
    replica.check_tokens()


def test_preempted_request_goes_on_with_the_same_tokens() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=2))
    replica.ask([1, 2], 5, priority=-1, sampling=LUCKY)
    replica.ask([3, 4], 5, sampling=LUCKY)
    replica.run()
    opened = [row for batch in replica.stage.batches for row in batch.rows if row.start == 0]
    assert len(opened) > 2, "nobody was preempted"
    replica.check_tokens()


def test_preempted_answers_draw_as_before() -> None:
    replica = Replica(TOY.open(num_pages=5, page_size=2))
    request_id = replica.ask([1, 2, 3], 6, n=3, sampling=LUCKY)
    replica.run()
    begun = [row for batch in replica.stage.batches for row in batch.rows if len(row.tokens) > 1]
    assert len(begun) > 1, "nobody was preempted"
    assert len({tuple(replica.tokens(request_id, index)) for index in range(3)}) == 3
    replica.check_tokens()


def test_without_preemption_who_finds_no_page_ends_and_the_other_goes_on() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=2), preemption=NoPreemption())
    first = replica.ask([1, 2], 5)
    second = replica.ask([3, 4], 5)
    replica.run()
    replica.check_tokens(first)
    assert replica.reason(second) == "error"


def test_answers_to_one_request_wait_for_each_other_rather_than_end_it() -> None:
    replica = Replica(TOY.open(num_pages=4, page_size=2), preemption=NoPreemption())
    request_id = replica.ask([1, 2], 6, n=3, sampling=LUCKY)
    replica.run()
    assert replica.reason(request_id) == "length"
    replica.check_tokens()


def test_step_holds_no_more_answers_than_may_run() -> None:
    replica = Replica(TOY.open(num_pages=40), limits=Limits(max_running=2))
    replica.ask([1, 2, 3], n=5, sampling=LUCKY)
    replica.run()
    assert max(len(batch.rows) for batch in replica.stage.batches) == 2
    replica.check_tokens()
