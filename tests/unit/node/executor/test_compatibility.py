from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from parallax_core.api import LayerRange, ParallaxError, StageInfo, TensorSpec
from parallax_core.node.executor.compatibility import check_stages
from parallax_core.testing.toy import Toy


def infos_of(*cuts: int) -> list[StageInfo]:
    toy = Toy(("full",) * 4)
    return [toy.open(LayerRange(start, stop)).info for start, stop in pairwise(cuts)]


@pytest.mark.parametrize("cuts", [(0, 4), (0, 1, 4), (0, 1, 2, 3, 4)])
def test_stages_of_all_layers_in_order_fit(cuts: tuple[int, ...]) -> None:
    check_stages(infos_of(*cuts))


@pytest.mark.parametrize(
    ("infos", "said"),
    [
        ([], "at least one stage"),
        (infos_of(1, 4), "stage 0 begins with layer 1, not with layer 0"),
        (infos_of(0, 3), "stage 0 ends before layer 3, and the model has 4"),
        ([*infos_of(0, 1), *infos_of(2, 4)], "stage 0 (toy) and stage 1 (toy) do not follow each other: one ends"),
        ([*infos_of(0, 2), *infos_of(1, 4)], "before layer 2, and the other begins with 1"),
        ([*infos_of(2, 4), *infos_of(0, 2)], "stage 0 begins with layer 2"),
    ],
)
def test_layers_must_be_whole_and_in_order(infos: list[StageInfo], said: str) -> None:
    with pytest.raises(ParallaxError) as caught:
        check_stages(infos)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": 5}, "stage 1 (toy) and stage 2 (toy) are of different models: 97 and 5 tokens"),
        ({"num_layers": 5}, "of different models: 4 and 5 layers"),
        ({"takes": (TensorSpec(1, "float16"),)}, "one gives int64 of width 1, and the other takes float16 of width 1"),
        ({"takes": (TensorSpec(2, "int64"),)}, "takes int64 of width 2"),
        ({"takes": ()}, "and the other takes nothing"),
    ],
)
def test_neighbours_must_fit(change: dict[str, object], said: str) -> None:
    infos = infos_of(0, 1, 2, 3, 4)
    infos[2] = replace(infos[2], **change)  # type: ignore[arg-type]
    with pytest.raises(ParallaxError) as caught:
        check_stages(infos)
    assert said in caught.value.message
    assert caught.value.hint


def test_neighbours_may_compute_in_different_dtypes() -> None:
    infos = infos_of(0, 2, 4)
    infos[0] = replace(infos[0], gives=(TensorSpec(576, "bfloat16"),))
    infos[1] = replace(infos[1], takes=(TensorSpec(576, "float32"),))
    check_stages(infos)


def test_planes_of_one_width_are_told_apart_by_name() -> None:
    infos = infos_of(0, 2, 4)
    mix, bank = (TensorSpec(576, "float32", name) for name in ("mix", "bank"))
    infos[0] = replace(infos[0], gives=(mix, bank))
    infos[1] = replace(infos[1], takes=(bank, mix))
    with pytest.raises(ParallaxError, match=r"gives mix as float32 of width 576 \+ bank as"):
        check_stages(infos)
    check_stages([infos[0], replace(infos[1], takes=(mix, bank))])


def test_streams_and_exact_dtypes_are_compared() -> None:
    infos = infos_of(0, 2, 4)
    wide = TensorSpec(576, "float32", shape=(4,))
    infos[0] = replace(infos[0], gives=(wide,))
    with pytest.raises(ParallaxError, match="width 4 x 576"):
        check_stages(infos)
    exact = replace(wide, is_exact=True)
    infos[0], infos[1] = replace(infos[0], gives=(exact,)), replace(infos[1], takes=(replace(exact, dtype="bfloat16"),))
    with pytest.raises(ParallaxError, match="exactly"):
        check_stages(infos)
