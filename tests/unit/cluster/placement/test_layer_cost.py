from __future__ import annotations

from typing import Any

import pytest

from parallax_core.cluster.placement.layer_cost import count_bits, size_layers, weigh_layers
from parallax_core.contracts.model import LayerShape, ModelShape


def shape(*, is_tied: bool, num_layers: int = 3) -> ModelShape:
    return ModelShape(
        hidden_size=4,
        vocab_size=25,
        context_length=8,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        layers=(LayerShape(kind="full", weights=1000, active_weights=300),) * num_layers,
        before_weights=100,
        after_weights=4 if is_tied else 104,
        is_tied=is_tied,
    )


def test_token_meets_the_head_in_the_last_layer() -> None:
    assert weigh_layers(shape(is_tied=True)) == (300, 300, 400)
    assert weigh_layers(shape(is_tied=False)) == (300, 300, 404)


def test_tied_embedding_is_loaded_at_both_ends_but_once_on_one_stage() -> None:
    assert size_layers(shape(is_tied=True), 16) == (2200, 2000, 2208)
    assert size_layers(shape(is_tied=True, num_layers=1), 16) == (2208,)
    assert size_layers(shape(is_tied=False), 32) == (4400, 4000, 4416)


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        ({}, 16),
        ({"quantization": {"bits": 4}}, 4),
        ({"quantization_config": {"bits": 8}}, 8),
        ({"quantization_config": {"quant_method": "fp8"}}, 0),
        ({"quantization_config": "four"}, 0),
    ],
)
def test_bits_are_those_that_are_stored(config: dict[str, Any], bits: int) -> None:
    assert count_bits(config, "auto") == bits


def test_float32_takes_four_bytes() -> None:
    assert count_bits({}, "float32") == 32
