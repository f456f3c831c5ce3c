from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from parallax_core.api import Edit, Fork, Open, Request, Sampling, StageInfo
from parallax_core.contracts.stage import PoolKind
from parallax_core.engine.limits import Limits
from parallax_core.testing.toy import GREEDY, Toy, describe_toy
from tests.unit.engine.replica import LUCKY, TOY, Replica, open_stages

STATE = Toy(("state",))
MIXED = Toy(("full", "window", "state"))


def cached(replica: Replica, request: str) -> int:
    finish = replica.deltas[request][-1].finish  # type: ignore[index]
    assert finish is not None
    return finish.cached_tokens


def test_finished_request_serves_the_next_that_begins_like_it() -> None:
    replica = Replica(TOY.open(num_pages=20))
    first = replica.ask([1, 2, 3, 4, 5, 6])
    replica.run()
    num_before = replica.count_tokens()
    again = replica.ask([1, 2, 3, 4, 5, 6])
    longer = replica.ask([1, 2, 3, 4, 5, 6, *replica.tokens(first), 9])
    replica.run()
    replica.check_tokens()
    assert replica.count_tokens() - num_before == (1 + 3) + (2 + 3)
    assert [cached(replica, each) for each in (first, again, longer)] == [0, 5, 9]


def test_running_request_serves_others_that_begin_like_it() -> None:
    replica = Replica(TOY.open(num_pages=20, max_batch_tokens=16))
    replica.ask(range(10), 9)
    replica.step()
    second = replica.ask([*range(10), 50], 3)
    replica.step()
    assert [len(row.tokens) for row in replica.stage.batches[-1].rows] == [1, 1]
    replica.run()
    replica.check_tokens()
    assert cached(replica, second) == 10


def test_forked_request_keeps_its_own_sampling() -> None:
    replica = Replica(TOY.open(num_pages=20))
    for sampling in (GREEDY, LUCKY):
        replica.ask([1, 2, 3, 4, 5], sampling=sampling)
        replica.run()
    assert len(replica.stage.forks) == 1
    replica.check_tokens()


@pytest.mark.parametrize("kinds", [("full",), ("full", "latent")])
def test_requests_of_different_salts_share_nothing(kinds: tuple[PoolKind, ...]) -> None:
    replica = Replica(*open_stages(Toy(kinds), len(kinds), num_pages=20))
    for seed, salt in enumerate(("", "a", "b", "a")):
        replica.ask([1, 2, 3, 4, 5], salt=salt, sampling=Sampling(seed=seed))
        replica.run()
    assert len(replica.stage.forks) == 1
    assert replica.stage.forks[0].spec is not None
    assert replica.stage.forks[0].spec.salt == "a"
    replica.check_tokens()


@pytest.mark.parametrize("num_stages", [1, 2])
def test_requests_of_different_adapters_share_nothing_and_their_replays_keep_them(
    num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(*args: Any) -> StageInfo:
        info = describe_toy(*args)
        return replace(info, capabilities=info.capabilities | {"adapters"})

    monkeypatch.setattr("parallax_core.testing.toy.describe_toy", describe)
    toy = Toy(("full", "full"))
    replica = Replica(*open_stages(toy, num_stages, num_pages=40))
    for seed, adapter in enumerate(("", "a", "b", "a")):
        replica.ask([1, 2, 3, 4, 5], adapter=adapter, sampling=Sampling(seed=seed))
        replica.run()
    assert [fork.spec.adapter for fork in replica.stage.forks if fork.spec] == ["a"]
    replica.ask([1, 2, 3, 4, 5], 6, adapter="b")
    replica.step()
    stages, opened = open_stages(toy, num_stages, num_pages=40), list[str]()
    edit = stages[0].edit

    def note(edits: Sequence[Edit]) -> None:
        opened.extend(each.spec.adapter for each in edits if isinstance(each, Open))
        edit(edits)

    monkeypatch.setattr(stages[0], "edit", note)
    replica.lose(*stages)
    replica.run()
    assert opened == ["b"], "it is computed again with its adapter"
    replica.check_tokens()


def test_state_is_forked_at_its_end_or_not_at_all() -> None:
    replica = Replica(STATE.open())
    first = replica.ask([1, 2, 3])
    replica.run()
    ended = [1, 2, 3, *replica.tokens(first)[:-1]]
    replica.ask([1, 2, 9])
    replica.run()
    assert replica.stage.forks == []
    replica.ask([*ended, 5, 6])
    replica.run()
    assert [fork.length for fork in replica.stage.forks] == [len(ended)]
    replica.check_tokens()


def test_state_is_kept_at_the_multiples_a_backend_wants() -> None:
    replica = Replica(STATE.open(checkpoint_every=4))
    replica.ask(range(10), 2)
    replica.run()
    assert [len(row.tokens) for batch in replica.stage.batches for row in batch.rows] == [4, 4, 2, 1]
    assert [fork.length for fork in replica.stage.forks] == [4, 8]
    longer = replica.ask([*range(9), 50], 2)
    shorter = replica.ask([*range(6), 50], 2)
    replica.run()
    assert (cached(replica, longer), cached(replica, shorter)) == (8, 4)
    replica.check_tokens()


def test_state_is_kept_once_however_often_it_comes_by() -> None:
    replica = Replica(STATE.open(checkpoint_every=4))
    for seed in range(3):
        replica.ask([*range(9)], 2, sampling=Sampling(seed=seed))
        replica.run()
    kept = [fork for fork in replica.stage.forks if fork.spec is None]
    assert [fork.length for fork in kept] == [4, 8]
    replica.check_tokens()


def test_kept_states_give_way_to_who_runs() -> None:
    replica = Replica(STATE.open(checkpoint_every=2, state_pages=2))
    replica.ask(range(8), 4)
    replica.run()
    assert [fork.length for fork in replica.stage.forks] == [2, 4, 6, 8]
    for number in range(4):
        replica.ask([number, *range(8)], 4)
    replica.run()
    replica.check_tokens()


def test_states_of_several_stages_are_kept_where_all_can() -> None:
    first, second = open_stages(Toy(("state", "state")), 2, checkpoint_every=2)
    other = Replica(first, second.toy.open(second.info.layers, checkpoint_every=3))
    other.ask(range(8), 1)
    other.run()
    assert [fork.length for fork in other.stage.forks] == [6]
    other.check_tokens()


@pytest.mark.parametrize("toy", [TOY, STATE, MIXED], ids=["full", "state", "mixed"])
@pytest.mark.parametrize("num_stages", [1, 2])
def test_answers_are_forks_behind_a_prompt_computed_once(toy: Toy, num_stages: int) -> None:
    num_stages = min(num_stages, len(toy.layers))
    replica = Replica(*open_stages(toy, num_stages, num_pages=40))
    replica.ask(range(10), 5, n=3, sampling=LUCKY)
    replica.run()
    assert replica.count_tokens() == 10 + 3 * 4
    assert [(fork.length, fork.choice) for fork in replica.stage.forks] == [(10, 1), (10, 2)]
    replica.check_tokens()


def test_answers_that_find_no_place_in_time_begin_from_what_is_kept() -> None:
    replica = Replica(STATE.open(), limits=Limits(max_running=2))
    replica.ask(range(10), 5, n=4, sampling=LUCKY)
    replica.run()
    assert replica.count_tokens() == 10 + 4 * 4
    assert sorted((fork.choice, fork.length) for fork in replica.stage.forks) == [(0, 10), (1, 10), (2, 10), (3, 10)]
    replica.check_tokens()


def test_answers_share_a_prompt_computed_again() -> None:
    replica = Replica(TOY.open(num_pages=40))
    replica.ask(range(10), 6, n=3, sampling=LUCKY)
    for _ in range(4):
        replica.step()
    replica.stage.forks.clear()
    replica.head.restart()
    replica.run()
    assert [fork.choice for fork in replica.stage.forks] == [1, 2]
    assert all(fork.length >= 10 for fork in replica.stage.forks)
    replica.check_tokens()


def test_what_holds_for_a_request_is_said_once() -> None:
    replica = Replica(TOY.open(num_pages=20))
    request: Request = replica.requests[replica.ask([1, 2, 3], n=2, priority=3, salt="s", sampling=LUCKY)]
    first = replica.head.plan(0.0)
    assert first is not None
    [opened] = first.edits
    replica.head.absorb(replica.compute(first), 0.0)
    second = replica.head.plan(0.0)
    assert second is not None
    [fork] = second.edits
    assert isinstance(opened, Open)
    assert isinstance(fork, Fork)
    spec = opened.spec
    assert (spec.prompt_length, spec.sampling, spec.priority, spec.salt) == (3, request.sampling, 3, "s")
    assert (fork.choice, fork.spec) == (1, None)
    replica.head.absorb(replica.compute(second), 0.0)
    replica.collect()
    replica.run()
    other = replica.ask([1, 2, 3], n=2, priority=3, salt="s", sampling=msgspec.structs.replace(LUCKY, seed=8))
    third = replica.head.plan(0.0)
    assert third is not None
    [fork] = third.edits
    assert isinstance(fork, Fork)
    assert fork.spec is not None, "another request's sampling was inherited"
    assert fork.spec.sampling.seed == 8
    replica.head.absorb(replica.compute(third), 0.0)
    replica.collect()
    replica.run()
    replica.check_tokens(other)


def test_fork_waits_for_pages_that_a_row_of_the_same_step_gives_back() -> None:
    replica = Replica(Toy(("window",), window=1).open(page_size=2, num_pages=3))
    replica.ask([7], 1)
    replica.run()
    replica.ask([1, 2, 3], 4)
    replica.step()
    assert replica.stage.free == (0,)
    replica.ask([7, 8], 1)
    replica.step()
    assert len(replica.stage.batches[-1].rows) == 2, "the page the first row gives back was not used"
    replica.run()
    replica.check_tokens()


def test_what_is_cached_is_counted_when_a_request_first_comes_to_the_stages() -> None:
    replica = Replica(TOY.open(num_pages=40))
    first = replica.ask(range(8), 6)
    replica.step()
    second = replica.ask(range(8), 3)
    replica.step()
    replica.cache.discard(replica.states[first].answers[0])
    replica.run()
    assert len(replica.stage.forks) == 2
    assert (cached(replica, first), cached(replica, second)) == (0, 7)
    replica.check_tokens()


def test_answers_are_forked_before_their_source_forgets_what_they_share() -> None:
    replica = Replica(Toy(("window",), window=1).open(page_size=2, num_pages=3))
    replica.ask([7], 12, priority=-1)
    replica.step()
    replica.ask([1, 2, 3, 4], 3, n=2, sampling=LUCKY)
    replica.step()
    assert replica.stage.free == (0,)
    replica.run()
    replica.check_tokens()
