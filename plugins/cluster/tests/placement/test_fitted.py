from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.fitted import fit_layers
from parallax_core.base.errors import UsageError
from parallax_core.contracts.stage import LayerRange

CASES = json.loads((Path(__file__).parents[4] / "tests" / "data" / "partitions.json").read_text())
GOLDEN = [case for case in CASES if "fit" in case]
"""What the layers of random models were when splitting and fitting were two algorithms; None: refused."""


@pytest.mark.parametrize("case", GOLDEN, ids=map(str, range(len(GOLDEN))))
def test_fit_is_the_one_written_down(case: dict[str, Any]) -> None:
    if case["stops"] is None:
        with pytest.raises(UsageError, match="too little memory"):
            fit_layers(*case["fit"])
    else:
        assert [each.stop for each in fit_layers(*case["fit"])] == case["stops"]


def pace(weights: list[int], rates: list[float], cuts: tuple[int, ...]) -> float:
    return max(sum(weights[a:b]) * rate for (a, b), rate in zip(pairwise(cuts), rates, strict=True))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8), st.lists(st.sampled_from((0.5, 1, 3)), min_size=1, max_size=4)
)
def test_no_other_split_is_faster(weights: list[int], rates: list[float]) -> None:
    if len(rates) > len(weights):
        with pytest.raises(UsageError, match="stages are asked for"):
            fit_layers(weights, rates)
        return
    found = fit_layers(weights, rates)
    cuts = (0, *(each.stop for each in found))
    inner = combinations(range(1, len(weights)), len(rates) - 1)
    best = min(pace(weights, rates, (0, *each, len(weights))) for each in inner)
    assert cuts[-1] == len(weights)
    assert pace(weights, rates, cuts) == best


def test_stage_that_is_three_times_as_fast_gets_three_times_the_layers() -> None:
    assert [len(each) for each in fit_layers([1] * 40, [1.0, 3.0])] == [30, 10]


def test_stage_gets_no_more_than_it_can_hold() -> None:
    assert [len(each) for each in fit_layers([2] * 10, [1.0, 1.0, 1.0], [4, 100, 6])] == [2, 5, 3]


def test_room_is_for_sizes_and_speed_for_weights() -> None:
    assert [len(each) for each in fit_layers([1] * 4, [1.0, 3.0], [9, 9], [8, 1, 1, 1])] == [2, 2]


def test_model_that_nobody_can_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="too little memory"):
        fit_layers([2] * 10, [1.0, 1.0], [4, 15])


def test_stages_begin_only_where_the_model_can_be_cut() -> None:
    assert fit_layers((1,) * 6, (1.0, 1.0, 1.0), illegal={2, 4}) == (
        LayerRange(0, 1),
        LayerRange(1, 3),
        LayerRange(3, 6),
    )
    with pytest.raises(UsageError, match="can be cut into at most 4"):
        fit_layers((1,) * 6, (1.0,) * 5, illegal={3, 4})
