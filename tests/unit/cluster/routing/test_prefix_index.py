from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Request, RequestId, Sampling
from parallax_core.cluster.routing.prefix_index import BLOCK, ReplicaPrefixIndex, make_keys


def make_request(*blocks: int, rest: int = 0) -> Request:
    """Return a request whose prompt is these blocks, each of one token repeated, and a few tokens more."""
    prompt = tuple(token for block in blocks for token in [block] * BLOCK) + (0,) * rest
    return Request(id=RequestId("1"), prompt=prompt, max_tokens=1, sampling=Sampling())


def test_only_full_blocks_have_keys() -> None:
    assert len(make_keys(make_request(rest=BLOCK - 1))) == 0
    assert len(make_keys(make_request(1, 2, rest=BLOCK - 1))) == 2


def test_keys_agree_as_far_as_the_prompts_do() -> None:
    one, other = make_keys(make_request(1, 2, 3, 4)), make_keys(make_request(1, 2, 9, 4))
    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_keys_of_another_salt_or_adapter_are_others() -> None:
    request = make_request(1, 2)
    others = [request, replace(request, salt="a"), replace(request, adapter="a"), replace(request, salt="b")]
    assert len({key for each in others for key in make_keys(each)}) == 2 * len(others)


def test_replica_knows_what_it_had_and_no_other_does() -> None:
    prefix_index = ReplicaPrefixIndex(3)
    prefix_index.note(make_keys(make_request(1, 2, 3)), 1)
    prefix_index.note(make_keys(make_request(1, 2)), 2)
    assert prefix_index.find_cached(make_keys(make_request(1, 2, 3, 4, rest=5))) == [0, 3 * BLOCK, 2 * BLOCK]
    assert prefix_index.find_cached(make_keys(make_request(1, 9))) == [0, BLOCK, BLOCK]
    assert prefix_index.find_cached(make_keys(make_request(2))) == [0, 0, 0]
    assert prefix_index.find_cached([]) == [0, 0, 0]


def test_replica_that_is_lost_is_forgotten_and_no_other() -> None:
    prefix_index = ReplicaPrefixIndex(2)
    keys = make_keys(make_request(1, 2))
    prefix_index.note(keys, 0)
    prefix_index.note(keys[:1], 1)
    prefix_index.forget(0)
    assert prefix_index.find_cached(keys) == [0, BLOCK]
    prefix_index.forget(1)
    assert len(prefix_index) == 0


def test_memory_is_bounded_and_ends_are_forgotten_before_beginnings() -> None:
    prefix_index = ReplicaPrefixIndex(1, capacity=3)
    keys = make_keys(make_request(1, 2, 3))
    prefix_index.note(keys, 0)
    prefix_index.note(make_keys(make_request(9)), 0)
    assert len(prefix_index) == 3
    assert prefix_index.find_cached(keys) == [2 * BLOCK]


def test_what_is_met_again_is_remembered_longer() -> None:
    prefix_index = ReplicaPrefixIndex(1, capacity=2)
    one, two, three = (make_keys(make_request(token)) for token in (1, 2, 3))
    for keys in (one, two, one, three):
        prefix_index.note(keys, 0)
    assert [prefix_index.find_cached(keys) for keys in (one, two, three)] == [[BLOCK], [0], [BLOCK]]


@given(st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=4), st.integers(0, 2))), st.lists(st.integers(1, 3)))
def test_replica_knows_the_longest_beginning_it_had(noted: list[tuple[list[int], int]], asked: list[int]) -> None:
    prefix_index = ReplicaPrefixIndex(3)
    for blocks, rank in noted:
        prefix_index.note(make_keys(make_request(*blocks)), rank)

    def shared(blocks: list[int]) -> int:
        return next(
            (n for n, pair in enumerate(zip(blocks, asked, strict=False)) if pair[0] != pair[1]),
            min(len(blocks), len(asked)),
        )

    expected = [max((shared(blocks) for blocks, rank in noted if rank == each), default=0) * BLOCK for each in range(3)]
    assert prefix_index.find_cached(make_keys(make_request(*asked))) == expected
