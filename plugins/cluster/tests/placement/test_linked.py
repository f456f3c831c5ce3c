from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.linked import LinkedOrders, find_linked, grow_pipelines
from parallax_core.contracts.placement import ClusterProfile, PlacementProblem
from tests.support.clusters import make_model, make_node

gaps = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1]))


def make_costs(*rooms: float, gaps: frozenset[tuple[int, int]] = frozenset()) -> CostModel:
    """Return the costs of a model of six layers on nodes with memory for some; ``gaps`` are pairs of them."""
    nodes = tuple(make_node(str(index), room) for index, room in enumerate(rooms))
    unreachable = frozenset((str(one), str(other)) for one, other in gaps)
    cluster = ClusterProfile(nodes=nodes, unreachable=unreachable)
    return CostModel(PlacementProblem(cluster=cluster, model=make_model(6, 1.0)))


def has_path(nodes: tuple[int, ...], gaps: frozenset[tuple[int, int]]) -> bool:
    return any(gaps.isdisjoint(pairwise(order)) for order in permutations(nodes))


@settings(deadline=None)
@given(gaps)
def test_order_of_all_nodes_is_found_if_there_is_one(gaps: frozenset[tuple[int, int]]) -> None:
    nodes = (3, 0, 5, 1, 4, 2)
    found = find_linked(make_costs(*[2] * 6, gaps=gaps), nodes)
    assert (found is not None) == has_path(nodes, gaps)
    if found is not None:
        assert sorted(found) == sorted(nodes)
        assert gaps.isdisjoint(pairwise(found))


def test_only_way_through_many_nodes_is_found() -> None:
    way = tuple(Random(2).sample(range(24), 24))
    hops = {*pairwise(way)}
    gaps = frozenset((one, other) for one in range(24) for other in range(24) if (one, other) not in hops)
    assert find_linked(make_costs(*[2] * 24, gaps=gaps), tuple(range(24))) == way


def test_search_ends_where_there_is_no_order() -> None:
    gaps = frozenset((one, other) for one in range(30) for other in range(30) if one % 2 != other % 2)
    assert find_linked(make_costs(*[2] * 30, gaps=gaps), tuple(range(30))) is None


def test_linked_order_stays_as_it_is() -> None:
    costs = make_costs(2, 2, 2, gaps=frozenset({(1, 2)}))
    orders = LinkedOrders(costs)
    assert orders.find((2, 1, 0)) == (2, 1, 0)
    assert orders.find((1, 2)) == (2, 1)
    changed = orders.find((0, 1, 2))
    assert changed is not None
    assert (sorted(changed), costs.is_linked(changed)) == ([0, 1, 2], True)


@settings(deadline=None)
@given(gaps)
def test_pipelines_grow_along_links_and_hold_the_model(gaps: frozenset[tuple[int, int]]) -> None:
    costs = make_costs(*[2.5] * 6, gaps=gaps)
    grown = grow_pipelines(costs, range(6))
    used = [node for order in grown for node in order]
    assert len(set(used)) == len(used)
    assert all(gaps.isdisjoint(pairwise(order)) and len(order) == 3 for order in grown)
    assert bool(grown) == any(gaps.isdisjoint(pairwise(order)) for order in permutations(range(6), 3))


def test_pipeline_grows_in_the_room_that_holds_the_model() -> None:
    """Twelve machines in three rooms, with links within a room only, and the model fits into the second."""
    rooms = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    gaps = frozenset(
        (one, other) for one in range(12) for other in range(12) if one != other and rooms[one] != rooms[other]
    )
    memory = [0.9] * 6 + [1.5, 1.5, 2.5, 2.5] + [2.5] * 2
    assert [sorted(order) for order in grow_pipelines(make_costs(*memory, gaps=gaps), range(12))] == [[6, 7, 8, 9]]


def test_node_that_holds_the_model_is_a_pipeline() -> None:
    everyone = frozenset((one, other) for one in range(2) for other in range(2) if one != other)
    assert grow_pipelines(make_costs(7, 7, gaps=everyone), range(2)) == ((0,), (1,))


def test_links_of_nodes_that_are_gone_count_nowhere() -> None:
    costs = make_costs(2, 2)
    problem = replace(costs.problem.cluster, unreachable=frozenset({("0", "gone"), ("gone", "1")}))
    assert not CostModel(replace(costs.problem, cluster=problem)).has_gaps
