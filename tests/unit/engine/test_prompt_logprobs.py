from __future__ import annotations

import pytest

from parallax_core.api import RequestId, Score, Scored, TokenLogprob
from parallax_core.engine.prompt_logprobs import PromptScore
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import TOY, Replica, expect_logprobs, open_stages


def check_scores(replica: Replica, request_id: RequestId) -> None:
    """What the first delta says, and only it, is what the model says of the prompt."""
    request = replica.requests[request_id]
    assert request.prompt_logprobs is not None
    first, *others = replica.deltas[request_id]
    told = expect_logprobs(replica.toy, request.prompt, 1, request.prompt_logprobs)
    assert list(first.prompt_logprobs) == told
    assert not any(delta.prompt_logprobs for delta in others)


def count_scores(replica: Replica) -> int:
    rows = [row for batch in replica.stage.batches for row in batch.rows]
    return sum(isinstance(output, Score) for row in rows for output in row.outputs)


def test_each_token_is_asked_for_once() -> None:
    score = PromptScore((5, 6, 7, 8), 2)
    assert score.ask(0, 2) == (Score(0, 6, 2), Score(1, 7, 2))
    assert score.ask(0, 3) == (Score(2, 8, 2),)
    assert score.ask(3, 4) == ()
    assert score.is_asked


def test_what_never_came_is_asked_for_again() -> None:
    score = PromptScore((5, 6, 7), 0)
    score.ask(0, 3)
    score.take(Scored(-1.0))
    score.forget_steps()
    assert not score.is_asked
    assert score.ask(0, 3) == (Score(1, 7, 0),)
    score.take(Scored(-2.0))
    assert score.read() == (TokenLogprob(6, -1.0), TokenLogprob(7, -2.0))


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("num_prompt", [1, 2, 8, 9, 20])
def test_prompt_is_scored_across_chunks_and_stages(num_prompt: int, num_stages: int) -> None:
    replica = Replica(*open_stages(Toy(("full",) * 3), num_stages, num_pages=20))
    request_id = replica.ask(range(num_prompt), prompt_logprobs=2)
    replica.run()
    check_scores(replica, request_id)
    replica.check_tokens()


def test_scored_prompt_is_computed_whole_though_stored() -> None:
    replica = Replica(TOY.open(num_pages=40))
    replica.ask(range(10))
    replica.run()
    request_id = replica.ask(range(10), prompt_logprobs=0, n=2)
    replica.run()
    check_scores(replica, request_id)
    finish = replica.deltas[request_id][-1].finish
    assert finish is not None
    assert finish.cached_tokens == 0
    assert count_scores(replica) == 9


def test_preempted_request_scores_its_prompt_once() -> None:
    replica = Replica(TOY.open(num_pages=6, page_size=2, max_batch_tokens=3))
    replica.ask([50, 51], 9, priority=-5)
    replica.step()
    request_id = replica.ask(range(8), 2, prompt_logprobs=1)
    replica.run()
    begun = [row for batch in replica.stage.batches for row in batch.rows if row.start == 0 and row.tokens[0] == 0]
    assert len(begun) > 1, "it was not preempted"
    assert count_scores(replica) == 7
    check_scores(replica, request_id)
    replica.check_tokens()


def test_failure_does_not_lose_what_was_scored() -> None:
    replica = Replica(*open_stages(TOY, 2, num_pages=20, max_batch_tokens=4))
    request_id = replica.ask(range(10), prompt_logprobs=1)
    replica.step()
    assert replica.head.plan(replica.now) is not None
    replica.head.restart()
    replica.run()
    check_scores(replica, request_id)
    replica.check_tokens()
