"""A waiting sequence starts as a fork of a stored one, and evictions do not repeat its look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_core.api import Drop, Fork, RequestId
from parallax_core.contracts.stage import PoolKind
from parallax_core.engine.cache import Found, SequenceCache, _has_room
from parallax_core.engine.ledger import PageClaim
from parallax_core.engine.prefix import PrefixIndex
from parallax_core.engine.sequence import Sequence
from parallax_core.testing.toy import Toy
from tests.unit.engine.replica import TOY, Replica, make_request

KINDS: tuple[tuple[PoolKind, ...], ...] = (("full",), ("window",), ("state",), ("full", "window"))
PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def admit_plainly(cache: SequenceCache, sequence: Sequence, found: Found, claim: PageClaim) -> bool:
    """Look up the best prefix again after every eviction: the simple version."""
    del found
    while True:
        match = cache.find(sequence).match
        if _has_room(sequence, match, claim):
            break
        if cache.evict(sequence.request.id, match.seq if match else None) is None:
            return False
    cache._begin(sequence, match)
    return True


@st.composite
def make_sizes(draw: st.DrawFn) -> dict[str, Any]:
    page_size = draw(st.integers(1, 4))
    return {
        "page_size": page_size,
        "num_pages": -(-15 // page_size) + draw(st.integers(0, 4)),
        "max_batch_tokens": draw(st.integers(4, 12)),
        "context": 15,
        "rewind": draw(st.integers(0, 3)),
        "state_pages": draw(st.integers(2, 5)),
        "checkpoint_every": draw(st.integers(0, 3)),
    }


@settings(deadline=None)
@given(
    kinds=st.sampled_from(KINDS),
    sizes=make_sizes(),
    script=st.lists(st.one_of(PROMPTS, st.sampled_from(["step", "step", "cancel"])), max_size=40),
)
def test_edits_are_those_of_looking_again_after_every_eviction(
    kinds: tuple[PoolKind, ...], sizes: dict[str, Any], script: list[Any]
) -> None:
    replicas = [Replica(Toy(kinds).open(**sizes)) for _ in range(2)]
    cache = replicas[1].cache
    cache.admit = lambda *given: admit_plainly(cache, *given)  # type: ignore[method-assign]
    for action in (*script, *["step"] * 40):
        if action == "step":
            compare_step(*replicas)
        elif action == "cancel":
            for replica in replicas:
                replica.head.cancel(RequestId(min(replica.requests, default="")))
        else:
            request = make_request(action, 5)
            for replica in replicas:
                replica.submit(request)


def compare_step(one: Replica, other: Replica) -> None:
    steps = []
    for replica in (one, other):
        step = replica.head.plan(replica.now)
        steps.append(step)
        if step is not None:
            replica.head.absorb(replica.compute(step), replica.now)
            replica.collect()
    assert steps[0] == steps[1]


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that were looked up."""
    keys: list[bytes] = []
    match: Callable[..., Iterator[Any]] = PrefixIndex.match

    def count(index: PrefixIndex, space: object, key: bytes) -> Iterator[Any]:
        keys.append(key)
        return match(index, space, key)

    monkeypatch.setattr(PrefixIndex, "match", count)
    return keys


def fill(replica: Replica, num_prompts: int) -> None:
    """Store prompts, none of which shares a prefix with another."""
    for number in range(num_prompts):
        replica.ask([number + 10] * 4, 1)
        replica.run()


def test_prompt_that_many_must_make_room_for_is_looked_up_once(lookups: list[bytes]) -> None:
    replica = Replica(TOY.open(num_pages=60, page_size=2, context=120, max_batch_tokens=16))
    fill(replica, 30)
    lookups.clear()
    replica.ask([token % 7 for token in range(100)], 1)
    step = replica.head.plan(replica.now)
    assert step is not None
    assert sum(isinstance(edit, Drop) for edit in step.edits) == 25
    assert len(lookups) == 1


def test_room_is_made_in_several_steps_where_it_takes_many_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.engine.cache.MOST_EVICTED", 10)
    replica = Replica(TOY.open(num_pages=60, page_size=2, context=120, max_batch_tokens=50))
    fill(replica, 30)
    request_id = replica.ask([token % 7 for token in range(100)], 1)
    dropped = []
    while (step := replica.head.plan(replica.now)) is not None:
        dropped.append(sum(isinstance(edit, Drop) for edit in step.edits))
        replica.head.absorb(replica.compute(step), replica.now)
        replica.collect()
    assert dropped == [10, 10, 5, 0]
    replica.check_tokens(request_id)


def test_long_sequences_count_for_several_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.engine.cache.MOST_EVICTED", 6)
    monkeypatch.setattr("parallax_core.engine.cache.SHORT", 2)
    replica = Replica(TOY.open(num_pages=60, page_size=2, context=120, max_batch_tokens=50))
    fill(replica, 30)
    replica.ask([token % 7 for token in range(100)], 1)
    step = replica.head.plan(replica.now)
    assert step is not None
    assert (len(step.edits), step.batch.rows) == (2, ())


def test_prompt_is_looked_up_again_when_what_it_would_have_begun_as_made_room(lookups: list[bytes]) -> None:
    replica = Replica(TOY.open(num_pages=8, page_size=2, context=16, max_batch_tokens=16))
    fill(replica, 3)
    replica.ask([10, 10, 11, *range(12)], 1)
    lookups.clear()
    step = replica.head.plan(replica.now)
    assert step is not None
    assert len(lookups) == 2
    assert not any(isinstance(edit, Fork) for edit in step.edits)


def test_tokens_are_converted_once_however_often_a_prompt_that_waits_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted: list[int] = []

    def convert(tokens: list[int]) -> bytes:
        converted.append(len(tokens))
        return b"".join(token.to_bytes(8, "little") for token in tokens)

    monkeypatch.setattr("parallax_core.engine.sequence.make_key", convert)
    replica = Replica(TOY.open(num_pages=10, page_size=2, context=20, max_batch_tokens=16))
    replica.ask(range(12), 8)
    replica.step()
    replica.ask(range(20, 32), 1)
    for _ in range(5):
        replica.step()
    assert converted == [12, 12]


def test_running_sequences_are_never_in_the_way_of_an_eviction() -> None:
    """However many run, the one to give way is found at once: they are not among those that are only stored."""
    replica = Replica(TOY.open(num_pages=60, page_size=2, max_batch_tokens=16))
    fill(replica, 2)
    for number in range(4):
        replica.ask([number] * 3, 9)
    replica.step()
    cache = replica.cache
    assert len(cache.stored) == 2
    assert not set(cache.stored) & {answer.seq for answer in list_running(replica)}


def list_running(replica: Replica) -> list[Any]:
    return [answer for state in replica.states.values() for answer in state.running]
