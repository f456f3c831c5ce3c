from __future__ import annotations

import pytest

from parallax_core.api import Grammar, Unavailable
from parallax_core.engine.limits import Limits
from parallax_core.engine.request import find_last
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import LUCKY, TOY, Replica, decode, expect_logprobs, make_request, open_stages


def test_request_may_have_several_answers_each_with_its_own_draws() -> None:
    replica = Replica(TOY.open(num_pages=40))
    request_id = replica.ask([1, 2, 3], 6, n=4, sampling=LUCKY)
    replica.run()
    replica.check_tokens()
    assert len({tuple(replica.tokens(request_id, index)) for index in range(4)}) == 4
    for index in range(4):
        text = "".join(delta.text for delta in replica.deltas[request_id] if delta.index == index)
        assert text == decode(replica.tokens(request_id, index))


def test_each_answer_ends_by_itself_and_the_stream_with_the_last() -> None:
    replica = Replica(TOY.open(num_pages=40))
    answers = [TOY.continuation([1, 2, 3], 6, LUCKY, choice) for choice in range(3)]
    stop = answers[0][2]
    assert stop not in answers[0][:2] + answers[1] + answers[2]
    request_id = replica.ask([1, 2, 3], 6, n=3, sampling=LUCKY, stop_ids=frozenset({stop}))
    replica.run()
    ends = [(delta.index, delta.ended) for delta in replica.deltas[request_id] if delta.ended]
    assert ends == [(0, "stop"), (1, "length"), (2, "length")]
    finish = replica.deltas[request_id][-1].finish
    assert replica.reason(request_id) == "length"
    assert finish is not None
    assert (finish.prompt_tokens, finish.output_tokens) == (3, 3 + 6 + 6)
    replica.check_tokens()


def test_answers_may_all_end_with_the_draw_they_begin_with() -> None:
    replica = Replica(TOY.open(num_pages=40))
    request_id = replica.ask([1, 2, 3], 1, n=3, sampling=LUCKY)
    replica.run()
    assert [delta.ended for delta in replica.deltas[request_id]] == ["length"] * 3
    assert [bool(delta.finish) for delta in replica.deltas[request_id]] == [False, False, True]
    assert replica.stage.forks == []
    replica.check_tokens()


def test_answers_outlive_the_first_of_them() -> None:
    for kinds in (("full", "full"), ("window", "state")):
        toy = Toy(kinds)
        stop = toy.continuation([1, 2, 3], 1, LUCKY)[0]
        replica = Replica(toy.open(num_pages=40))
        request_id = replica.ask([1, 2, 3], 4, n=3, sampling=LUCKY, stop_ids=frozenset({stop}))
        replica.run()
        assert replica.tokens(request_id) == [stop]
        assert replica.count_tokens() == 3 + 2 * 3
        replica.check_tokens()


def test_request_is_not_waiting_while_any_answer_runs() -> None:
    stop = TOY.continuation([1, 2, 3], 1, LUCKY)[0]
    replica = Replica(TOY.open(num_pages=40), limits=Limits(max_running=2, max_waiting=0))
    replica.ask([1, 2, 3], 9, n=2, sampling=LUCKY, stop_ids=frozenset({stop}))
    replica.step()
    replica.step()
    replica.ask([5])
    with pytest.raises(Unavailable, match="1 requests are running and 1 are waiting"):
        replica.ask([6])
    replica.run()
    replica.check_tokens()


def test_failure_ends_a_request_with_all_its_answers_once() -> None:
    replica = Replica(TOY.open(num_pages=40))
    request_id = replica.ask([1, 2, 3], 6, n=3, sampling=LUCKY)
    for _ in range(3):
        replica.step()
    assert replica.head.plan(replica.now) is not None
    replica.head.fail("it broke")
    replica.collect()
    last = replica.deltas[request_id][-1]
    assert replica.reason(request_id) == "error"
    assert last.ended is None
    assert last.finish is not None
    assert last.finish.output_tokens == 3 * 3
    assert replica.head.plan(replica.now) is None


def test_cancelled_request_leaves_nothing_running() -> None:
    replica = Replica(TOY.open(num_pages=40))
    request_id = replica.ask([1, 2, 3], 6, n=3, sampling=LUCKY)
    for _ in range(3):
        replica.step()
    told = list(replica.deltas[request_id])
    step = replica.head.plan(replica.now)
    assert step is not None
    replica.head.cancel(request_id)
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    assert replica.deltas[request_id] == told
    replica.head.drop_stored()
    replica.run()
    assert replica.stage.free == (40,)


def test_cancelled_request_may_come_again_while_its_step_is_in_flight() -> None:
    replica = Replica(TOY.open(num_pages=40))
    request_id = replica.ask([1, 2, 3], n=2, sampling=LUCKY)
    request = replica.requests[request_id]
    step = replica.head.plan(0.0)
    assert step is not None
    replica.head.cancel(request_id)
    replica.submit(request)
    replica.head.absorb(replica.compute(step), 0.0)
    assert replica.head.take_deltas() == []
    replica.run()
    replica.check_tokens()


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("top", [0, 3])
def test_tokens_come_with_their_logprobs_if_asked_for(num_stages: int, top: int) -> None:
    replica = Replica(*open_stages(TOY, num_stages, num_pages=40))
    request_id = replica.ask([1, 2, 3], n=2, sampling=LUCKY, logprobs=top)
    silent = replica.ask([1, 2, 3])
    replica.run()
    assert replica.logprobs(silent) == []
    assert all(len(delta.logprobs) == len(delta.tokens) for delta in replica.deltas[request_id])
    for index in range(2):
        tokens = [1, 2, 3, *replica.tokens(request_id, index)]
        assert replica.logprobs(request_id, index) == expect_logprobs(TOY, tokens, 3, top)


def test_last_request_is_the_newest_on_the_stages_and_without_one_the_newest_that_could_be() -> None:
    replica = Replica(TOY.open(num_pages=40))
    assert find_last(replica.states.values()) is None
    first = replica.ask([1, 2, 3], 9)
    replica.now += 1.0
    second = replica.ask([4, 5, 6], 9)
    held = replica.submit(make_request([7], grammar=Grammar(kind="json_object"), stop_ids=frozenset({2})), is_held=True)
    states = replica.states
    assert find_last(states.values()) is states[second]
    assert find_last([states[held]]) is None
    replica.step()
    assert find_last(states.values()) is states[second]
    replica.now += 1.0
    waiting = replica.ask([8, 9], 9)
    assert find_last(states.values()) is states[second]
    assert find_last([states[first], states[waiting]]) is states[first]
    assert find_last([states[waiting], states[held]]) is states[waiting]


@pytest.mark.parametrize(
    ("given", "said"), [("", "timed out after 1.5 seconds"), ("no replica came", "no replica came")]
)
def test_request_whose_time_is_over_says_which(given: str, said: str) -> None:
    replica = Replica(TOY.open(num_pages=40))
    replica.ask([1, 2, 3], timeout_s=1.5)
    [request] = replica.states.values()
    finish = request.expire(2.0, given).finish
    assert finish is not None
    assert (finish.reason, finish.message) == ("timeout", said)
