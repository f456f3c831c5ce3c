"""Whenever a stage is lost, every request goes on as if nothing had happened, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import (
    Delta,
    Drawn,
    Finish,
    FrameLimits,
    Hidden,
    InvalidRequest,
    Request,
    RequestId,
    Sampling,
    State,
    Tensor,
)
from parallax_core.base.errors import StageLost
from parallax_core.engine.limits import Limits
from parallax_core.engine.replay import MOST_REPLAYS, MOST_UNSTARTED_REPLAYS
from parallax_core.testing.paged import show_state
from parallax_core.testing.toy import GREEDY, Toy, ToyStage
from tests.unit.engine.replica import LUCKY, Replica, expect_embedding, make_request, open_stages, read_numbers

DEEP = Toy(("full", "window", "state", "full"))
PROMPT = tuple(range(11))
STRICT = Sampling(seed=2, temperature=0.7, repetition_penalty=1.5, frequency_penalty=1.0, presence_penalty=0.5)
LASTING = Sampling(temperature=0, min_tokens=6, stop_ids=tuple(range(0, 97, 2)))


def read_stop(sampling: Sampling) -> tuple[str, ...]:
    """Return a stop string that begins in the fourth token of the answer and ends in the fifth."""
    first, second = DEEP.continuation(PROMPT, 5, sampling)[3:]
    return (f"{first}><{second}",)


FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "seeded": {"sampling": LUCKY},
    "penalties": {"sampling": STRICT},
    "min_tokens": {"sampling": LASTING, "stop_ids": frozenset(range(0, 97, 2))},
    "stop strings": {"sampling": GREEDY, "stop": read_stop(GREEDY)},
    "several answers": {"sampling": LUCKY, "n": 2, "logprobs": 1},
    "logprobs": {"sampling": STRICT, "logprobs": 3},
    "logprobs of the prompt": {"sampling": GREEDY, "prompt_logprobs": 2, "logprobs": 0},
}


def begin(request: Request, num_stages: int) -> Replica:
    """Return a replica that has accepted the request; its prompt takes several steps."""
    replica = Replica(*open_again(num_stages))
    replica.submit(request)
    return replica


def open_again(num_stages: int) -> list[ToyStage]:
    return open_stages(DEEP, num_stages, num_pages=40, max_batch_tokens=4)


def open_wide() -> list[ToyStage]:
    return open_stages(DEEP, 1, num_pages=40, max_batch_tokens=64)


def summarize(replica: Replica, request: Request) -> tuple[object, ...]:
    """Return all that the client was sent, and what it is charged with."""
    deltas = replica.deltas[request.id]
    choices = range(request.n)
    finish = deltas[-1].finish
    assert finish is not None
    return (
        [replica.tokens(request.id, choice) for choice in choices],
        ["".join(delta.text for delta in deltas if delta.index == choice) for choice in choices],
        [replica.logprobs(request.id, choice) for choice in choices],
        [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs],
        [delta.ended for delta in deltas if delta.ended],
        replace(finish, timing=None),
        [getattr(replica.head.stats(), name) for name in ("prompt_tokens", "cached_tokens", "output_tokens")],
    )


def plan_ahead(replica: Replica) -> None:
    """Have steps in flight, whose results will never come."""
    while replica.head.plan(replica.now):
        pass


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("name", FIELDS)
def test_answer_is_the_same_at_whichever_step_a_stage_is_lost(name: str, num_stages: int) -> None:
    request = make_request(PROMPT, 9, **FIELDS[name])
    whole = begin(request, num_stages)
    num_steps = 0
    while whole.step():
        num_steps += bool(whole.head.stats().running)
    expected = summarize(whole, request)
    assert num_steps > 5
    for loss in range(num_steps):
        replica = begin(request, num_stages)
        for _ in range(loss):
            replica.step()
        plan_ahead(replica)
        replica.lose(*open_again(num_stages))
        replica.run()
        assert summarize(replica, request) == expected, f"lost after {loss} steps"


@pytest.mark.parametrize("name", FIELDS)
def test_answer_is_the_same_when_a_stage_is_lost_after_every_token(name: str) -> None:
    request = make_request(PROMPT, 9, **FIELDS[name])
    whole, replica = begin(request, 2), begin(request, 2)
    whole.run()
    num_seen = 0
    while replica.step():
        if (num_output := replica.head.stats().output_tokens) > num_seen:
            num_seen = num_output
            replica.lose(*open_again(2))
    assert summarize(replica, request) == summarize(whole, request)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("num_stages", [1, 3])
def test_embedding_is_that_of_the_plain_model_at_whichever_step_a_stage_is_lost(num_stages: int, pooling: Any) -> None:
    request = make_request(PROMPT, 1, pooling=pooling)
    expected = expect_embedding(DEEP, request)
    for loss in range(5):
        replica = begin(request, num_stages)
        for number in range(3):
            replica.ask((number, 5), 5)
        for _ in range(loss):
            replica.step()
        plan_ahead(replica)
        replica.lose(*open_again(num_stages))
        replica.run()
        [found] = [delta.embedding for delta in replica.deltas[request.id] if delta.embedding]
        assert read_numbers(found) == expected
        replica.check_tokens()


def test_step_has_no_more_hidden_states_than_a_frame_carries() -> None:
    toy = Toy(("full",))
    [stage] = open_stages(toy, 1, num_pages=400, max_batch_tokens=400)
    replica = Replica(stage, limits=Limits(max_running=200))
    for number in range(150):
        replica.ask((number % 97, number // 97), 1, pooling="last")
    replica.run()
    counts = [sum(isinstance(each, Hidden) for row in step.rows for each in row.outputs) for step in stage.batches]
    assert sum(counts) == 150
    assert max(counts) == FrameLimits().buffers
    for request_id, request in replica.requests.items():
        [delta] = replica.deltas[request_id]
        assert delta.embedding == show_state(toy.states(request.prompt)[-1])


@pytest.mark.parametrize("fields", [{"n": 2}, {"delivered": ((1,),)}])
def test_embedding_is_only_for_a_single_answer_from_its_beginning(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="only for a single answer") as caught:
        Replica(*open_again(1)).submit(make_request(PROMPT, 9, pooling="last", **fields))
    assert caught.value.param == "pooling"


@pytest.mark.parametrize(
    ("answer", "tensors"),
    [
        (State(1), (show_state(1),)),
        (Drawn((1,)), ()),
        (State(0), (Tensor("int64", (1,), bytes(8)),)),
        (State(0), (Tensor("float32", (1, 1), bytes(4)),)),
    ],
)
def test_hidden_state_that_is_wrong_loses_the_stage(answer: Any, tensors: tuple[Tensor, ...]) -> None:
    replica = Replica(*open_wide())
    replica.ask(PROMPT, 1, pooling="last")
    step = replica.head.plan(replica.now)
    assert step is not None
    result = replica.compute(step)
    with pytest.raises(StageLost, match="the last stage answered"):
        replica.head.absorb(replace(result, answers=(answer, *result.answers[1:]), tensors=tensors), replica.now)


def read_tokens(deltas: Sequence[Delta], choice: int) -> tuple[int, ...]:
    """Return the tokens of an answer."""
    return tuple(token for delta in deltas if delta.index == choice for token in delta.tokens)


def read_answers(deltas: Sequence[Delta], request: Request) -> list[tuple[object, ...]]:
    """Return what a client makes of the deltas, by answer: its tokens, text, log-probabilities and end."""
    answers = [[delta for delta in deltas if delta.index == choice] for choice in range(request.n)]
    return [
        (
            read_tokens(answer, choice),
            "".join(delta.text for delta in answer),
            [entry for delta in answer for entry in delta.logprobs],
            [delta.ended for delta in answer if delta.ended],
        )
        for choice, answer in enumerate(answers)
    ]


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("name", FIELDS)
def test_answer_goes_on_in_another_head_after_any_token(name: str, num_stages: int) -> None:
    request = make_request(PROMPT, 9, **FIELDS[name])
    whole = begin(request, num_stages)
    whole.run()
    deltas = [replace(delta, finish=None) for delta in whole.deltas[request.id]]
    for place in range(request.n, len(deltas)):
        delivered = tuple(read_tokens(deltas[:place], choice) for choice in range(request.n))
        replica = begin(replace(request, delivered=delivered), num_stages)
        replica.run()
        *rest, last = replica.deltas[request.id]
        assert last.finish is not None
        assert last.finish.output_tokens == sum(len(delta.tokens) for delta in deltas)
        assert last.finish.cached_tokens == 0
        found = [*deltas[:place], *rest, replace(last, finish=None)]
        assert read_answers(found, request) == read_answers(deltas, request), f"moved after {place} deltas"
        assert not any(delta.prompt_logprobs for delta in rest)


@pytest.mark.parametrize(
    ("delivered", "message"),
    [
        (((1,),), "delivered has answers of [1] tokens; each of the 2 answers needs at least one"),
        (((1,), ()), "delivered has answers of [1, 0] tokens; each of the 2 answers needs at least one"),
        (((1,), (1,) * 10), "delivered has an answer of 10 tokens, which has not ended; it can have only 9"),
        (((1,), (97,)), "delivered has tokens outside of 0 to 96"),
        (((1,), (-1,)), "delivered has tokens outside of 0 to 96"),
        (((1,) * 9, (1,) * 9), "the tokens that were delivered leave nothing to generate"),
    ],
)
def test_answer_that_cannot_go_on_is_refused(delivered: tuple[tuple[int, ...], ...], message: str) -> None:
    replica = Replica(*open_again(1))
    with pytest.raises(InvalidRequest) as caught:
        replica.submit(make_request(PROMPT, 9, n=2, delivered=delivered))
    assert (caught.value.message, caught.value.param) == (message, "delivered")
    assert replica.head.stats().waiting == 0


def test_answer_that_ended_for_lack_of_room_on_a_smaller_replica_does_not_go_on_elsewhere() -> None:
    """It would have gone on after its client was told that it has ended."""
    request = make_request(PROMPT, None, n=2, sampling=Sampling(seed=4))
    whole = begin(request, 1)
    whole.run()
    tokens = [read_tokens(whole.deltas[request.id], choice) for choice in range(2)]
    delivered = (tokens[0][:5], tokens[1][:3])
    replica = begin(replace(request, delivered=delivered, ended=frozenset({0})), 1)
    replica.run()
    deltas = replica.deltas[request.id]
    assert [read_tokens(deltas, choice) for choice in range(2)] == [(), tokens[1][3:]]
    assert [delta.index for delta in deltas if delta.ended] == [1]
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.output_tokens == 5 + len(tokens[1])


def test_answer_that_ended_on_a_larger_replica_leaves_the_others_on_a_smaller_one() -> None:
    most = begin(make_request(PROMPT, None), 1).head.max_length - len(PROMPT)
    request = make_request(PROMPT, None, n=2, sampling=Sampling(seed=4))
    ended = replace(request, delivered=((1,) * (most + 20), (2,)), ended=frozenset({0}))
    replica = begin(ended, 1)
    replica.run()
    assert {delta.index for delta in replica.deltas[request.id]} == {1}
    with pytest.raises(InvalidRequest, match=f"an answer of {most} tokens, which has not ended"):
        begin(replace(request, delivered=((1,) * most, (2,))), 1)


def test_request_that_has_waited_elsewhere_keeps_its_place() -> None:
    replica = Replica(*open_wide(), limits=Limits(max_running=1))
    others = [replica.ask(PROMPT, 3), replica.ask((5, 6), 3)]
    moved = replica.ask((7, 8), 3, waited_s=5.0, delivered=((DEEP.continuation((7, 8), 1)[0],),))
    while not replica.deltas[moved]:
        replica.step()
    assert not any(replica.deltas[other] for other in others)


def test_request_that_never_gains_a_token_ends_before_those_that_run_beside_it() -> None:
    replica = Replica(*open_wide(), limits=Limits(max_running=2))
    begun = replica.ask(PROMPT, 9)
    while not replica.deltas[begun]:
        replica.step()
    unstarted = replica.ask(PROMPT, 9, salt="other")
    queued = replica.ask(PROMPT, 9, salt="late")
    for number in range(1, MOST_REPLAYS + 2):
        replica.head.plan(replica.now)
        replica.lose(*open_wide())
        assert bool(replica.deltas[unstarted]) == (number > MOST_UNSTARTED_REPLAYS)
    stats = replica.head.stats()
    assert (stats.requests_replayed, stats.requests_lost) == (
        MOST_REPLAYS + MOST_UNSTARTED_REPLAYS + 2,
        2,
    )  # the queued one begins in between
    assert read_end(replica, unstarted).message == "a stage was lost 3 times in a row while it computed this request"
    assert read_end(replica, begun).message == "a stage was lost 5 times in a row while it computed this request"
    replica.run()
    replica.check_tokens(queued)


def test_request_that_fits_no_longer_ends_with_an_error_that_says_so() -> None:
    replica = Replica(*open_again(2))
    long, short = replica.ask(range(20), 30), replica.ask((1, 2), 9)
    while len(replica.tokens(long)) < 5:
        replica.step()
    num_sent = len(replica.tokens(long))
    replica.lose(*open_stages(DEEP, 2, page_size=4, num_pages=6, max_batch_tokens=4))
    assert read_end(replica, long).message == (
        "a stage was lost, and the pipeline that replaced it holds 24 tokens; "
        f"this request has 20 tokens and {num_sent} of its answer"
    )
    replica.run()
    replica.check_tokens(short)


@pytest.mark.parametrize("max_tokens", [None, 30])
def test_answer_goes_on_as_far_as_the_rebuilt_stages_have_room(max_tokens: int | None) -> None:
    replica = Replica(*open_again(2))
    request_id = replica.ask(range(8), max_tokens)
    while len(replica.tokens(request_id)) < 3:
        replica.step()
    replica.lose(*open_stages(DEEP, 2, page_size=4, num_pages=6, max_batch_tokens=4))
    replica.run()
    assert replica.tokens(request_id) == DEEP.continuation(range(8), 24 - 8)
    finish = read_end(replica, request_id)
    if max_tokens is None:
        assert (finish.reason, finish.message) == ("length", "")
    else:
        assert (finish.reason, finish.message[:16]) == ("error", "a stage was lost")
        assert finish.message.endswith("has no room for the rest of this answer")


def test_request_ends_if_the_rebuilt_stages_lack_what_it_asks_for() -> None:
    replica = Replica(*open_again(1))
    request_id = replica.ask((1, 2), 9, logprobs=1)
    while not replica.deltas[request_id]:
        replica.step()
    [stage] = open_again(1)
    replica.head.pause(replica.now)
    replica.head.resume([replace(stage.info, capabilities=frozenset())], replica.now)
    replica.collect()
    message = read_end(replica, request_id).message
    assert message.startswith("a stage was lost, and the pipeline that replaced it cannot serve this request: logprobs")


def test_time_of_the_recovery_is_attributed_and_ends_requests() -> None:
    replica = Replica(*open_again(1))
    patient, hasty = replica.ask(PROMPT, 40), replica.ask(PROMPT, 9, timeout_s=0.5)
    while len(replica.tokens(hasty)) < 2:
        replica.step()
    replica.head.pause(replica.now)
    replica.head.expire(replica.now + 0.5)
    replica.lose(*open_again(1))
    replica.run()
    replica.check_tokens(patient)
    ends = [read_end(replica, each) for each in (patient, hasty)]
    assert [end.reason for end in ends] == ["length", "timeout"]
    for end, expected in zip(ends, (1.0, 0.5), strict=True):
        assert end.timing is not None
        assert end.timing.recovery_s == pytest.approx(expected)
        [pause] = end.timing.pauses
        assert pause.start_s > 0
        assert pause.took_s == end.timing.recovery_s
        assert end.timing.decode_s > expected


def test_request_lives_through_pipelines_of_different_lengths() -> None:
    request = make_request(PROMPT, 30, sampling=LUCKY, n=2)
    whole, replica = begin(request, 1), begin(request, 3)
    whole.run()
    sums = [0.0] * 4
    for num_stages in (3, 1, 4, 2):
        replica.lose(*open_again(num_stages))
        for _ in range(6):
            step = replica.head.plan(replica.now)
            assert step is not None
            *before, last = replica.chain.run(step)
            for stage, result in enumerate((*before, last)):
                seconds = float(stage + 1)
                replica.head.confirm(stage, step.batch.step, result.free, seconds, replica.now)
                sums[stage] += seconds
            replica.head.absorb(last, replica.now)
    replica.collect()
    assert len(replica.tokens(request.id)) > 1
    replica.run()
    assert summarize(replica, request) == summarize(whole, request)
    timing = read_end(replica, request.id).timing
    assert timing is not None
    assert timing.stages_s == tuple(sums)
    assert len(timing.hops_s) == len(sums)
    assert [pause.took_s for pause in timing.pauses] == pytest.approx([1.0] * 4)
    assert timing.recovery_s == pytest.approx(4.0)
    assert len(replica.head.stage_clock.steps) == 2


def test_all_requests_expire_when_the_recovery_takes_too_long() -> None:
    replica = Replica(*open_again(2))
    ids = [replica.ask(PROMPT, 9), replica.ask(PROMPT, 9)]
    replica.step()
    replica.head.pause(replica.now)
    replica.head.expire_all("it was not replaced", replica.now + 2)
    replica.collect()
    ends = [read_end(replica, each) for each in ids]
    assert {(end.reason, end.message) for end in ends} == {("timeout", "it was not replaced")}
    assert replica.head.stats().requests_lost == 2
    replica.lose(*open_again(2))
    assert not replica.step()


def read_end(replica: Replica, request_id: RequestId) -> Finish:
    finish = replica.deltas[request_id][-1].finish
    assert finish is not None
    return finish
