from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import LayerRange
from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.parallel import ParallelConfig, StagePlace, parse_layers

SIZES = st.integers(1, 5)


def test_config_without_anything_is_one_stage_where_the_backend_likes() -> None:
    assert ParallelConfig().replicas == ((StagePlace(None, ""),),)


@given(SIZES, SIZES)
def test_replicas_have_all_devices_in_order(data_parallel: int, num_stages: int) -> None:
    devices = tuple(f"cuda:{index}" for index in range(data_parallel * num_stages))
    replicas = ParallelConfig(data_parallel=data_parallel, num_stages=num_stages, devices=devices).replicas
    assert tuple(place.device for place in chain(*replicas)) == devices
    assert [len(stages) for stages in replicas] == [num_stages] * data_parallel


@given(st.data(), st.integers(1, 80), SIZES)
def test_every_replica_has_every_layer_once(data: st.DataObject, num_layers: int, data_parallel: int) -> None:
    num_stages = data.draw(st.integers(1, num_layers))
    config = ParallelConfig(data_parallel=data_parallel, num_stages=num_stages).with_layers(num_layers)
    for stages in config.replicas:
        covered = chain(*(range(place.layers.start, place.layers.stop) for place in stages if place.layers))
        assert list(covered) == list(range(num_layers))
        assert all(place.layers for place in stages)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data_parallel": 0}, "0 replicas are asked for"),
        ({"num_stages": -2}, "-2 stages are asked for"),
        (
            {"data_parallel": 2, "num_stages": 3, "devices": ("a", "b")},
            "2 devices are named, and 2 replicas of 3 stages",
        ),
        ({"num_stages": 2, "devices": ("a", "a")}, "'a' is named more than once"),
        ({"num_stages": 2, "devices": ("a", "")}, "is empty"),
        ({"num_stages": 2, "layers": (LayerRange(0, 4),)}, "for 1 stages, and there are 2"),
        ({"layers": (LayerRange(1, 4),)}, "begins at layer 1, and must begin at 0"),
        ({"layers": (LayerRange(0, 0),)}, "0-0 is empty"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ParallelConfig(**options)


def test_layers_are_read_as_they_are_written() -> None:
    layers = parse_layers("0-10, 10-20,20-30")
    assert layers == (LayerRange(0, 10), LayerRange(10, 20), LayerRange(20, 30))
    config = ParallelConfig(num_stages=3, layers=layers)
    assert config.with_layers(30) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' in '' is not a range of layers"),
        ("0-10,", "'' in '0-10,'"),
        ("0-10,x-20", "'x-20'"),
        ("0-10,10-20-30", "'10-20-30'"),
        ("0..10", "'0..10'"),
        ("5-10", "begins at layer 5, and must begin at 0"),
        ("0-10,11-20", "begins at layer 11, and must begin at 10"),
        ("0-10,9-20", "begins at layer 9, and must begin at 10"),
        ("0-10,10-10", "10-10 is empty"),
        ("0-\u0661\u0660", "is not a range of layers"),
    ],
)
def test_layers_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_layers(text)


def test_layers_of_another_model_are_refused() -> None:
    with pytest.raises(UsageError, match="the stages have layers 0 to 4, and the model has 5"):
        ParallelConfig(layers=parse_layers("0-4")).with_layers(5)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="3 stages are asked for, and the model has 2 layers"):
        ParallelConfig(num_stages=3).with_layers(2)
