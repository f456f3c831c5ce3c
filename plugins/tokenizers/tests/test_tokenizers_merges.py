from __future__ import annotations

import pytest

from parallax_tokenizers.merges import list_merges, order_splits


@pytest.mark.parametrize("token", ["ab", "aba", "abab", "ababa", b"aabaab", b"abcab", "aaaa", "aaaaa"])
def test_every_split_is_listed_once(token: str | bytes) -> None:
    assert sorted(order_splits(token)) == list(range(1, len(token)))


def test_pair_that_another_follows_within_a_text_comes_first() -> None:
    assert list(order_splits("aba")) == [2, 1]  # in "ab a ba", the first two make "aba", not the last two
    order = list(order_splits("ababa"))
    assert order.index(2) < order.index(3)  # in "ab aba ba"


def test_only_known_parts_are_merged_best_rank_first() -> None:
    assert list(list_merges(["ab", "abc", "xyz"], {"a", "b", "c", "ab", "bc", "xy"})) == [
        ("a", "b"),
        ("ab", "c"),
        ("a", "bc"),
    ]
