"""Which rows run together, and what a layout asks of memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parallax_backend_mlx.budget import plan_account
from parallax_backend_mlx.cache_layout import Layout, Leaf, Part
from parallax_backend_mlx.row_groups import MAX_WASTE, Grouping, group_rows
from parallax_backend_mlx.runtime import mx
from parallax_core.api import OutOfPages, Row, SeqId

PLAIN = Grouping(is_batched=True, has_states=False, spare_keys=0)
TOKEN = Part((2, 8), mx.float32)
FULL, WINDOW = Leaf("full", (TOKEN, TOKEN)), Leaf("window", (TOKEN, TOKEN), 32)
STATE = Leaf("state", (Part((4, 8), mx.float32),))


def make_rows(*sizes: tuple[int, int]) -> list[Row]:
    """Return a row for each start and number of tokens."""
    return [Row(SeqId(number), start, (1,) * count) for number, (start, count) in enumerate(sizes)]


def list_groups(rows: Sequence[Row], grouping: Grouping = PLAIN) -> set[frozenset[int]]:
    """Return the groups, after a look at whether each row is in one."""
    groups = group_rows(rows, grouping)
    assert sorted(index for group in groups for index in group) == list(range(len(rows)))
    return {frozenset(group) for group in groups}


def test_decode_is_never_padded_to_a_chunk() -> None:
    rows = make_rows((9, 1), (0, 2), (9, 1), (0, 40))
    assert list_groups(rows) == {frozenset({0, 2}), frozenset({1}), frozenset({3})}


def test_chunks_run_together_while_little_of_it_is_padding() -> None:
    rows = make_rows((0, 20), (0, 17), (0, 9), (0, 8))
    groups = list_groups(rows)
    assert groups == {frozenset({0, 1}), frozenset({2, 3})}
    for group in groups:
        counts = [len(rows[index].tokens) for index in group]
        assert len(counts) * max(counts) - sum(counts) <= MAX_WASTE * sum(counts)


@pytest.mark.parametrize(("spare_keys", "groups"), [(0, 2), (10_000, 1)])
def test_short_context_is_not_padded_to_a_long_one_unless_that_is_cheaper(spare_keys: int, groups: int) -> None:
    rows = make_rows(*[(10, 1)] * 6, (1000, 1))
    found = list_groups(rows, Grouping(is_batched=True, has_states=False, spare_keys=spare_keys))
    assert len(found) == groups


def test_states_take_no_padding_and_do_not_mix_with_new_ones() -> None:
    rows = make_rows((0, 5), (5, 5), (0, 5), (0, 4), (7, 1), (0, 1))
    groups = list_groups(rows, Grouping(is_batched=True, has_states=True, spare_keys=10_000))
    assert groups == {frozenset({0, 2}), frozenset({1}), frozenset({3}), frozenset({4}), frozenset({5})}


def test_rows_run_alone_where_they_must() -> None:
    rows = make_rows((0, 5), (0, 5), (1, 1))
    assert group_rows(rows, Grouping(is_batched=False, has_states=False, spare_keys=0)) == [[0], [1], [2]]


def test_sizes_are_those_of_all_layers_together() -> None:
    layout = Layout({0: (FULL, STATE), 1: (FULL, WINDOW)})
    assert layout.list_sizes() == {("full", 0): 256, ("window", 32): 128, ("state", 0): 128}


def test_memory_for_not_even_one_sequence_is_an_error() -> None:
    with pytest.raises(OutOfPages):
        plan_account(1000, 256, 100, 4096)
