from __future__ import annotations

from parallax_cluster.node.coordinator.exclusions import EXCLUDED_S, MOST_EXCLUDED_S, Exclusions


def test_node_is_excluded_for_twice_as_long_each_time() -> None:
    exclusions = Exclusions()
    exclusions.add("one", "it has no memory", 100.0)
    assert exclusions.find(100.0 + EXCLUDED_S - 1) == {"one": "it has no memory"}
    assert exclusions.find(100.0 + EXCLUDED_S) == {}
    exclusions.add("one", "again", 200.0)
    assert exclusions.find(200.0 + 2 * EXCLUDED_S - 1) == {"one": "again"}
    assert exclusions.find(200.0 + 2 * EXCLUDED_S) == {}
    for _ in range(20):
        exclusions.add("one", "again", 0.0)
    assert exclusions.find(MOST_EXCLUDED_S - 1) == {"one": "again"}
    assert exclusions.find(MOST_EXCLUDED_S) == {}


def test_node_that_has_behaved_for_a_while_is_excluded_as_the_first_time() -> None:
    exclusions = Exclusions()
    for _ in range(2):
        exclusions.add("one", "it has no memory", 0.0)
    assert exclusions.find(4 * EXCLUDED_S) == {}
    exclusions.add("one", "it has no memory", 1000.0)
    assert exclusions.find(1000.0 + EXCLUDED_S) == {}
