from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from parallax_core.api import Answer, Drawn, Scored, StageResult, State
from parallax_core.base.errors import StageLost
from parallax_core.engine.inflight import PlannedStep
from tests.unit.engine.replica import TOY, Replica, open_stages


def plan(replica: Replica) -> PlannedStep:
    step = replica.head.plan(replica.now)
    assert step is not None
    return step


TOP = ((1, -0.5), (2, -1.5))
SCORED = Scored(-1.0, ((1, -0.5),))
BAD: list[tuple[dict[str, Any], tuple[Answer, ...], str]] = [
    ({}, (), "0 answers to step 1; it must send 1"),
    ({}, (Drawn((1,)), Drawn((1,))), "2 answers"),
    ({}, (Scored(-1.0),), "answered Scored"),
    ({}, (State(0),), "answered State"),
    ({}, (Drawn(()),), "answered Drawn"),
    ({}, (Drawn((1, 2)),), "answered Drawn"),
    ({}, (Drawn((97,)),), "answered Drawn"),
    ({}, (Drawn((-1,)),), "answered Drawn"),
    ({}, (Drawn((1,), (-0.5,)),), "answered Drawn"),
    ({"n": 2}, (Drawn((1,)),), "answered Drawn"),
    ({"n": 2}, (Drawn((1, 97)),), "answered Drawn"),
    ({"logprobs": 2}, (Drawn((1,)),), "answered Drawn"),
    ({"logprobs": 2}, (Drawn((1,), (-0.5,), TOP[:1]),), "answered Drawn"),
    ({"logprobs": 2, "n": 2}, (Drawn((1, 2), (-0.5,), TOP),), "answered Drawn"),
    ({"prompt_logprobs": 1}, (Drawn((1,)), SCORED), "answered Drawn"),
    ({"prompt_logprobs": 1}, (Scored(-1.0), Drawn((1,))), "answered Scored"),
    *[({"logprobs": 2}, (Drawn((1,), (value,), TOP),), "answered Drawn") for value in (nan, inf, 0.5)],
    *[({"logprobs": 2}, (Drawn((1,), (-0.5,), (TOP[0], (2, value))),), "answered Drawn") for value in (nan, inf, 0.5)],
    *[({"logprobs": 1}, (Drawn((1,), (-0.5,), ((token, -0.5),)),), "answered Drawn") for token in (97, 2**53 - 1)],
    *[({"prompt_logprobs": 1}, (Scored(value, TOP[:1]), Drawn((1,))), "answered Scored") for value in (nan, inf, 0.5)],
    *[({"prompt_logprobs": 1}, (Scored(-1.0, ((1, value),)), Drawn((1,))), "answered Scored") for value in (nan, inf)],
    ({"prompt_logprobs": 1}, (Scored(-1.0, ((97, -0.5),)), Drawn((1,))), "answered Scored"),
]


def test_log_probability_of_what_cannot_be_is_taken() -> None:
    replica = Replica()
    replica.ask([5, 6], logprobs=2)
    plan(replica)
    replica.head.absorb(StageResult((Drawn((1,), (-inf,), ((1, 1e-6), (2, -inf))),)), 0.0)


def test_wrong_answer_is_not_told_at_length() -> None:
    replica = Replica()
    replica.ask([5, 6])
    plan(replica)
    with pytest.raises(StageLost) as caught:
        replica.head.absorb(StageResult((Drawn(tuple(range(100_000))),)), 0.0)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(("fields", "answers", "message"), BAD)
def test_answers_that_were_not_asked_for_mean_a_lost_stage(
    fields: dict[str, Any], answers: tuple[Answer, ...], message: str
) -> None:
    replica = Replica()
    replica.ask([5, 6], **fields)
    step = plan(replica)
    with pytest.raises(StageLost, match=message):
        replica.head.absorb(StageResult(answers), 0.0)
    assert replica.head.take_deltas() == []
    replica.head.absorb(replica.compute(step), 0.0)
    replica.collect()
    assert replica.head.epoch == 0


def test_last_stage_whose_pages_differ_is_lost() -> None:
    replica = Replica()
    replica.ask([1])
    plan(replica)
    with pytest.raises(StageLost, match=r"stage 0 has \(3,\) free pages after step 1; it must have \(7,\)"):
        replica.head.absorb(StageResult((Drawn((1,)),), free=(3,)), 0)


def test_any_stage_whose_pages_differ_is_lost_while_the_step_is_in_flight_and_soon_after() -> None:
    replica = Replica(*open_stages(TOY, 2, max_batch_tokens=4))
    replica.ask(range(12))
    first, second = plan(replica), plan(replica)
    replica.head.confirm(0, first.batch.step, (7,))
    replica.head.confirm(0, second.batch.step, (6,))
    with pytest.raises(StageLost, match="stage 0"):
        replica.head.confirm(0, second.batch.step, (7,))
    replica.head.absorb(replica.compute(first), 0.0)
    replica.head.confirm(0, first.batch.step, (7,))
    with pytest.raises(StageLost, match="after step 1"):
        replica.head.confirm(0, first.batch.step, (8,))


def test_reports_on_steps_nobody_knows_are_ignored() -> None:
    replica = Replica(TOY.open(num_pages=20))
    replica.ask([1], 9)
    replica.run()
    for step in (0, 1, 99):
        replica.head.confirm(0, step, (1,))
    replica.head.restart()
    replica.head.confirm(0, 9, (1,))


def test_stage_that_says_nothing_of_its_pages_is_not_asked() -> None:
    replica = Replica()
    replica.ask([1])
    step = plan(replica)
    replica.head.confirm(0, step.batch.step, ())
