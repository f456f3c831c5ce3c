from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.engine.priority import SPARE, PriorityQueue

ACTIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 9)),
    st.tuples(st.just("discard"), st.integers(0, 9)),
    st.tuples(st.just("first")),
)


@given(st.lists(ACTIONS))
def test_queue_is_a_sorted_list_whoever_leaves(actions: list[tuple[object, ...]]) -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    members: dict[int, int] = {}
    for action in actions:
        match action:
            case ("add", int(key), int(member)):
                queue.add(key, member)
                members.pop(member, None)
                members[member] = key
            case ("discard", int(member)):
                queue.discard(member)
                members.pop(member, None)
        first = min(members, key=members.__getitem__, default=None)
        assert queue.first() == (None if first is None else (members[first], first))
        assert len(queue) == len(members)
        assert all((member in queue) == (member in members) for member in range(10))


def test_queue_does_not_grow_with_those_who_have_left() -> None:
    queue: PriorityQueue[int] = PriorityQueue()
    queue.add(0, -1)
    for number in range(10 * SPARE):
        queue.add(1, number)
        queue.discard(number)
    full: PriorityQueue[int] = PriorityQueue()
    for number in range(SPARE + 2):
        full.add(1, 10 * SPARE + number)
    assert len(pickle.dumps(queue)) < len(pickle.dumps(full))
    assert queue.first() == (0, -1)
