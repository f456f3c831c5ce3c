"""The parameters counted of a config.json are those that the authors of the model state.

A stated total is met within one percent; active parameters within the rounding of the figure, where that is coarser.
Authors differ on whether the embedding and the head are active, so a figure may be with both, with the head, or none.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from parallax_cluster.cli.model_list import SHIPPED
from parallax_core.api import ModelShape, list_borders
from parallax_models.plugin import parallax_register_models

MODELS: list[dict[str, Any]] = json.loads(SHIPPED.read_text(encoding="utf-8"))["models"]
SPECS = {name: spec for spec in parallax_register_models() for name in spec.architectures}
EXACT = 0.01
BILLION = 1e9
STATED = [model["name"] for model in MODELS if model["active"]]


def read_shape(model: dict[str, Any]) -> ModelShape:
    return SPECS[model["config"]["architectures"][0]].adapter.load().read_shape(model["config"])


def find_model(name: str) -> dict[str, Any]:
    [model] = [model for model in MODELS if model["name"] == name]
    return model


def read_figure(figure: str) -> tuple[float, float]:
    """Return a figure such as ``30.5B``, and how far a count may be from it."""
    number = figure.removesuffix("B")
    decimals = len(number.partition(".")[2])
    return float(number) * BILLION, max(EXACT * float(number), 0.5 * 10**-decimals) * BILLION


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_total_is_what_the_authors_state(model: dict[str, Any]) -> None:
    shape = read_shape(model)
    counted = shape.before_weights + shape.after_weights + sum(layer.weights for layer in shape.layers)
    figure, _ = read_figure(model["params"])
    assert abs(counted - figure) <= EXACT * figure
    assert len(list_borders(shape)) == len(shape.layers) - 1


@pytest.mark.parametrize("name", STATED)
def test_active_parameters_are_what_the_authors_state(name: str) -> None:
    model = find_model(name)
    shape = read_shape(model)
    layers = sum(layer.active_weights for layer in shape.layers)
    figure, error = read_figure(model["active"])
    assert layers - error <= figure <= layers + shape.before_weights + shape.after_weights + error


def test_there_are_models_of_many_families_and_a_wrong_count_is_seen() -> None:
    assert len(MODELS) >= 25
    assert len({SPECS[model["config"]["architectures"][0]].name for model in MODELS}) >= 15
    model = find_model("Qwen3-30B-A3B")
    narrow = {**model, "config": {**model["config"], "num_experts": 120}}
    with pytest.raises(AssertionError):
        test_total_is_what_the_authors_state(narrow)
