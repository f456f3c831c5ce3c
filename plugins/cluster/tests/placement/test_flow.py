from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.flow import FlowGraph

Edges = dict[tuple[int, int], int]
edges = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda ends: ends[0] != ends[1]), st.integers(1, 9)
)


def find_least_cut(given: Edges) -> int:
    """Return the least capacity of edges from a set of vertices with 0 in it to one with 5, trying all."""
    sets = ({0, *inner} for number in range(5) for inner in combinations(range(1, 5), number))
    return min(
        sum(capacity for (one, other), capacity in given.items() if one in near and other not in near) for near in sets
    )


@settings(deadline=None)
@given(edges)
def test_most_flow_is_the_least_cut_and_its_paths_make_it_up(given: Edges) -> None:
    graph = FlowGraph(("", 0), ("", 5))
    for (one, other), capacity in given.items():
        graph.add(("", one), ("", other), capacity)
    most = graph.find_most()
    assert most == pytest.approx(find_least_cut(given))
    used: dict[tuple[int, int], float] = {}
    for path, flow in graph.list_paths():
        assert (path[0], path[-1]) == (("", 0), ("", 5))
        for edge in pairwise(number for _, number in path):
            used[edge] = used.get(edge, 0.0) + flow
        most -= flow
    assert most == pytest.approx(0)
    assert all(flow <= given[edge] + 1e-6 for edge, flow in used.items())
