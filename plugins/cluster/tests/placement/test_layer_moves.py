from __future__ import annotations

from math import inf

import pytest

from parallax_cluster.placement.layer_cost import LayerCosts
from parallax_cluster.placement.layer_moves import choose_layers, find_rooms
from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange
from parallax_core.wire.membership import Join

HALVES = (LayerRange(0, 4), LayerRange(4, 8))
GIB = 2**30
EVEN = LayerCosts((1,) * 8, (GIB,) * 8)


def join(host: str, memory: int) -> Join:
    return Join("inprocess://x", (), host, 0, memory=memory)


@pytest.mark.parametrize(
    ("joins", "rooms"),
    [
        ([join("a", 10 * GIB), join("b", 5 * GIB)], [8 * GIB, 4 * GIB]),
        ([join("a", 10 * GIB), join("b", 0)], [8 * GIB, inf]),
        ([join("a", 10 * GIB), join("a", 11 * GIB)], [inf, inf]),
        ([join("a", 10 * GIB), join("b", 10 * GIB), join("a", 10 * GIB)], [4 * GIB, 8 * GIB, 4 * GIB]),
    ],
)
def test_room_of_a_node_is_most_of_what_is_free_on_its_machine(joins: list[Join], rooms: list[float]) -> None:
    assert find_rooms(joins, 8 * GIB) == rooms


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_model_that_all_together_cannot_hold_is_refused_with_both_sizes(hosts: str) -> None:
    joins = [join(host, 2 * GIB // hosts.count("a") * (1 if hosts == "ab" else 2)) for host in hosts]
    with pytest.raises(UsageError, match=r"takes 8\.0 GiB, and the nodes have room for [13]\.\d GiB of it"):
        find_rooms(joins, 8 * GIB)


def test_fast_stage_gets_no_more_than_it_can_hold() -> None:
    assert choose_layers(HALVES, EVEN, [0.3, 0.1], [inf, 5 * GIB]) == (LayerRange(0, 3), LayerRange(3, 8))


def test_layers_go_to_the_stage_that_is_fast() -> None:
    assert choose_layers(HALVES, EVEN, [0.3, 0.1]) == (LayerRange(0, 2), LayerRange(2, 8))


def test_layers_stay_where_it_is_not_worth_moving_them() -> None:
    assert choose_layers(HALVES, EVEN, [0.105, 0.1]) is None
