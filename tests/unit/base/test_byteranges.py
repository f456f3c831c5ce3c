from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.byteranges import ByteRanges

Ranges = list[tuple[int, int]]
ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def spell(some: Ranges) -> set[int]:
    return {byte for start, stop in some for byte in range(start, stop)}


@given(ranges)
def test_ranges_hold_what_was_added_sorted_and_apart(some: Ranges) -> None:
    held = list(ByteRanges(some))
    assert spell(held) == spell(some)
    assert all(start < stop for start, stop in held)
    assert all(left[1] < right[0] for left, right in itertools.pairwise(held))
    assert ByteRanges(some).total == len(spell(some))


@given(ranges, st.integers(0, 45), st.integers(0, 45))
def test_missing_is_what_is_asked_for_and_not_held(some: Ranges, start: int, stop: int) -> None:
    held = ByteRanges(some)
    missing = held.find_missing(start, stop)
    assert spell(missing) == set(range(start, stop)) - spell(some)
    assert missing == list(ByteRanges(missing))
    assert held.covers(start, stop) == (not missing)


@given(ranges, st.integers(0, 10))
def test_bridges_fill_gaps_up_to_their_width_and_no_others(some: Ranges, gap: int) -> None:
    held, bridged = list(ByteRanges(some)), list(ByteRanges(some).bridge(gap))
    assert spell(held) <= spell(bridged)
    assert all(right[0] - left[1] > gap for left, right in itertools.pairwise(bridged))
    filled = spell(bridged) - spell(held)
    narrow = [(left[1], right[0]) for left, right in itertools.pairwise(held) if right[0] - left[1] <= gap]
    assert filled == spell(narrow)
