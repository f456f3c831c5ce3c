from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.partition import split_layers
from parallax_core.contracts.stage import LayerRange

CASES = json.loads((Path(__file__).parents[3] / "data" / "partitions.json").read_text())
GOLDEN = [case for case in CASES if "split" in case]
"""What the layers of random models were when splitting and fitting were two algorithms."""


@pytest.mark.parametrize("case", GOLDEN, ids=map(str, range(len(GOLDEN))))
def test_split_is_the_one_written_down(case: dict[str, Any]) -> None:
    assert [each.stop for each in split_layers(*case["split"])] == case["stops"]


def test_what_is_left_over_goes_to_early_stages() -> None:
    assert [len(each) for each in split_layers(30, 7)] == [5, 5, 4, 4, 4, 4, 4]
    assert [len(each) for each in split_layers(4, 4)] == [1, 1, 1, 1]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_split_is_as_good_as_any(weights: list[int], data: st.DataObject) -> None:
    num_layers = len(weights)
    num_stages = data.draw(st.integers(1, num_layers))

    def score(cuts: list[int]) -> tuple[int, int]:
        loads = [sum(weights[start:stop]) for start, stop in pairwise(cuts)]
        return max(loads), sum(load**2 for load in loads)

    every = ([0, *cuts, num_layers] for cuts in combinations(range(1, num_layers), num_stages - 1))
    chosen = split_layers(num_layers, num_stages, weights)
    assert score([0, *(each.stop for each in chosen)]) == min(map(score, every))


@pytest.mark.parametrize("weights", [[1], [1, -1]])
def test_weights_that_are_not_those_of_the_layers_are_refused(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="2 layers need as many weights"):
        split_layers(2, 1, weights)


def test_stages_begin_only_where_the_model_can_be_cut() -> None:
    assert split_layers(6, 2, illegal={3, 4}) == (LayerRange(0, 2), LayerRange(2, 6))
    with pytest.raises(UsageError, match="can be cut into at most 4"):
        split_layers(6, 5, illegal={3, 4})
