from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, permutations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.covers import describe_gap, find_covers
from parallax_core.contracts.placement import PlacedStage
from parallax_core.contracts.stage import LayerRange

NUM_LAYERS = 6
ranges = st.builds(
    lambda start, size: LayerRange(start, min(NUM_LAYERS, start + size)), st.integers(0, 5), st.integers(1, 6)
)
nodes = st.dictionaries(st.sampled_from("abcdefgh"), ranges, max_size=7)
trips = st.dictionaries(st.frozensets(st.sampled_from("abcdefghH"), min_size=2, max_size=2), st.integers(1, 9))


def find(found: Mapping[str, LayerRange], lengths: Mapping[frozenset[str], int]) -> list[tuple[PlacedStage, ...]]:
    return find_covers(found, NUM_LAYERS, "H", lambda one, other: float(lengths.get(frozenset((one, other)), 1)))


def score(names: tuple[str, ...], lengths: Mapping[frozenset[str], int]) -> tuple[int, float, tuple[str, ...]]:
    way = ("H", *names, "H")
    return len(names), sum(lengths.get(frozenset(pair), 1) for pair in pairwise(way)), names


def list_pipelines(found: Mapping[str, LayerRange]) -> list[tuple[str, ...]]:
    """Return every pipeline that the nodes form, by trying all orders of all subsets."""
    orders = (order for size in range(1, len(found) + 1) for order in permutations(found, size))
    return [order for order in orders if is_cover([found[name] for name in order])]


def is_cover(layers: list[LayerRange]) -> bool:
    joints = [each.stop for each in layers[:-1]] == [each.start for each in layers[1:]]
    return joints and layers[0].start == 0 and layers[-1].stop == NUM_LAYERS


@given(nodes, trips)
def test_covers_have_no_gap_and_no_node_twice_and_use_ranges_as_they_are(
    found: dict[str, LayerRange], lengths: dict[frozenset[str], int]
) -> None:
    covers = find(found, lengths)
    used = [stage.node for stages in covers for stage in stages]
    assert len(used) == len(set(used))
    for stages in covers:
        assert is_cover([stage.layers for stage in stages])
        assert all(found[stage.node] == stage.layers for stage in stages)


@given(nodes, trips)
def test_each_cover_is_the_best_of_the_nodes_that_are_left_until_there_is_none(
    found: dict[str, LayerRange], lengths: dict[frozenset[str], int]
) -> None:
    left = dict(found)
    for stages in find(found, lengths):
        names = tuple(stage.node for stage in stages)
        assert names == min(list_pipelines(left), key=lambda each: score(each, lengths))
        left = {name: layers for name, layers in left.items() if name not in names}
    assert not list_pipelines(left)


@given(nodes, trips, st.randoms(use_true_random=False))
def test_order_in_which_nodes_are_known_changes_nothing(
    found: dict[str, LayerRange], lengths: dict[frozenset[str], int], random: object
) -> None:
    items = list(found.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert find(dict(items), lengths) == find(found, lengths)


def test_fewer_stages_count_before_shorter_trips() -> None:
    found = {"a": LayerRange(0, 6), "b": LayerRange(0, 3), "c": LayerRange(3, 6), "d": LayerRange(3, 6)}
    far = {frozenset("aH"): 9, frozenset("bd"): 1, frozenset("bc"): 5}
    assert [[stage.node for stage in stages] for stages in find(found, far)] == [["a"], ["b", "d"]]


@given(nodes)
def test_gap_is_told_where_there_is_no_pipeline(found: dict[str, LayerRange]) -> None:
    assert bool(describe_gap(list(found.values()), NUM_LAYERS)) == (not list_pipelines(found))


def test_gap_says_where_layers_are_missing() -> None:
    told = describe_gap([LayerRange(0, 2), LayerRange(3, 6)], NUM_LAYERS)
    assert told == "no node goes on from layer 2 of 6: nodes have 0-2, 3-6"
    assert describe_gap([], 6) == "no node has announced layers of the model, which has 6"


def test_ranges_outside_the_model_are_not_used() -> None:
    assert find({"a": LayerRange(0, 7), "b": LayerRange(2, 2)}, {}) == []


def test_cover_uses_links_that_exist_even_if_it_has_more_stages() -> None:
    found = {"a": LayerRange(0, 3), "b": LayerRange(3, 6), "c": LayerRange(3, 4), "d": LayerRange(4, 6)}
    gaps = {("a", "b"): inf}
    [stages] = find_covers(found, NUM_LAYERS, "H", lambda one, other: gaps.get((one, other), 1.0))
    assert [stage.node for stage in stages] == ["a", "c", "d"]
    gaps[("a", "c")] = inf
    assert find_covers(found, NUM_LAYERS, "H", lambda one, other: gaps.get((one, other), 1.0)) == []


def test_nodes_that_form_a_pipeline_leave_no_gap() -> None:
    assert describe_gap([LayerRange(0, 4), LayerRange(4, 6)], NUM_LAYERS) == ""
