from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parallax_core.api import Hidden, InvalidRequest, Outcome, StageBatch, Tensor
from parallax_core.base.errors import StageLost
from parallax_core.engine.prompt_embedding import PromptEmbedding
from parallax_core.testing.paged import show_state
from parallax_core.testing.toy import Toy, ToyStage
from tests.unit.engine.replica import TOY, Replica, expect_embedding, make_request, open_stages, read_numbers


def check_embedding(replica: Replica, request_id: Any) -> None:
    """The first delta has the embedding of the plain model, and no other has one."""
    first, *others = replica.deltas[request_id]
    assert first.embedding is not None
    assert read_numbers(first.embedding) == expect_embedding(replica.toy, replica.requests[request_id])
    assert not any(delta.embedding for delta in others)


def list_sums(replica: Replica) -> list[int]:
    """Return the numbers of tokens that the rows were to sum."""
    rows = [row for batch in replica.stage.batches for row in batch.rows]
    return [output.summed for row in rows for output in row.outputs if isinstance(output, Hidden)]


def test_each_state_is_asked_for_once() -> None:
    mean = PromptEmbedding(6, "mean")
    assert mean.ask(0, 2) == (Hidden(1, 2),)
    assert mean.ask(1, 4) == (Hidden(2, 2),)
    assert (mean.num_asked, mean.is_asked) == (4, False)
    assert mean.ask(4, 7) == (Hidden(1, 2),)
    assert (mean.num_asked, mean.is_asked) == (6, True)
    assert mean.ask(7, 8) == ()


def test_last_state_alone_is_asked_for() -> None:
    last = PromptEmbedding(6, "last")
    assert last.num_asked == 5
    assert last.ask(0, 5) == ()
    assert last.ask(3, 6) == (Hidden(2),)
    assert last.is_asked
    last.take(show_state(7))
    assert last.read() == show_state(7)


def test_what_never_came_is_asked_for_again() -> None:
    mean = PromptEmbedding(4, "mean")
    mean.ask(0, 2)
    mean.ask(2, 4)
    mean.take(Tensor("float32", (2,), bytes(8)))
    mean.forget_steps()
    assert mean.ask(0, 4) == (Hidden(3, 2),)
    assert mean.read() is None
    mean.take(Tensor("float32", (2,), bytes(8)))
    assert mean.read() == Tensor("float32", (2,), bytes(8))


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("num_prompt", [1, 2, 8, 9, 20])
def test_mean_is_taken_across_chunks_and_stages(num_prompt: int, num_stages: int) -> None:
    replica = Replica(*open_stages(Toy(("full",) * 3), num_stages, num_pages=20))
    request_id = replica.ask(range(num_prompt), pooling="mean")
    replica.run()
    check_embedding(replica, request_id)
    replica.check_tokens()


def test_mean_of_a_stored_prompt_is_computed_whole_and_the_prompt_is_stored_for_others() -> None:
    replica = Replica(TOY.open(num_pages=40))
    replica.ask(range(10))
    replica.run()
    means = [replica.ask(range(10), 1, pooling="mean") for _ in range(2)]
    replica.run()
    later = replica.ask(range(12), 1)
    replica.run()
    for request_id in means:
        check_embedding(replica, request_id)
    finishes = [replica.deltas[request_id][-1].finish for request_id in (*means, later)]
    assert [finish.cached_tokens for finish in finishes if finish] == [0, 0, 10]
    assert sum(list_sums(replica)) == 20


def test_preempted_request_sums_its_prompt_once() -> None:
    replica = Replica(TOY.open(num_pages=6, page_size=2, max_batch_tokens=3))
    replica.ask([50, 51], 9, priority=-5)
    replica.step()
    request_id = replica.ask(range(8), 2, pooling="mean")
    replica.run()
    begun = [row for batch in replica.stage.batches for row in batch.rows if row.start == 0 and row.tokens[0] == 0]
    assert len(begun) > 1, "it was not preempted"
    assert sum(list_sums(replica)) == 8
    check_embedding(replica, request_id)


def test_cancelled_request_leaves_no_pages_and_disturbs_no_other() -> None:
    replica = Replica(TOY.open(num_pages=40, max_batch_tokens=4))
    gone, kept = (replica.ask(range(start, start + 11), 1, pooling="mean") for start in (0, 20))
    step = replica.head.plan(replica.now)
    assert step is not None
    replica.head.cancel(gone)
    replica.head.absorb(replica.compute(step), replica.now)
    replica.run()
    check_embedding(replica, kept)
    assert gone not in replica.deltas or not replica.deltas[gone]


class Strange(ToyStage):
    """Answers sums with a tensor of its own."""

    tensors: tuple[Tensor, ...] = ()

    def step(self, batch: StageBatch) -> Outcome:
        result = super().step(batch).wait()
        return Outcome(replace(result, tensors=self.tensors[:1] if result.tensors else ()))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Tensor("float16", (1,), bytes(2)), None),
        (Tensor("float32", (1, 1), bytes(4)), None),
        (show_state(1), Tensor("float32", (2,), bytes(8))),
    ],
)
def test_sum_that_is_wrong_loses_the_stage(first: Tensor, second: Tensor | None) -> None:
    stage = Strange(TOY)
    replica = Replica(stage)
    replica.ask(range(12), 1, pooling="mean")
    stage.tensors = (first,)
    if second is not None:
        replica.step()
        stage.tensors = (second,)
    with pytest.raises(StageLost, match="the last stage answered"):
        replica.step()


class Plain(ToyStage):
    """Has hidden states, and sums none."""

    @property
    def info(self) -> Any:
        return replace(super().info, capabilities=frozenset({"hidden"}))


def test_backend_without_sums_is_a_refusal_that_names_the_pooling() -> None:
    replica = Replica(Plain(TOY))
    with pytest.raises(InvalidRequest, match="does not sum hidden states") as caught:
        replica.submit(make_request([1], 1, pooling="mean"))
    assert caught.value.param == "pooling"
    replica.ask([1, 2], 1, pooling="last")
    replica.run()
