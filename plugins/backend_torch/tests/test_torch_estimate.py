"""Models that no adapter knows are described by what transformers builds, as an adapter would describe them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from parallax_backend_torch.estimated import ESTIMATED
from parallax_core.api import LayerShape, ModelShape, Unsupported
from tests.support.checkpoints import OTHERS, SERVED, make_model
from tests.support.torch_backend import SPECS

OURS = ("llama", "qwen2", "gemma3_text", "mistral", "phi3", "granite", "qwen3_moe", "mixtral", "gpt_oss", "olmo3")
"""Families that have an adapter, and layers with keys and values of their own."""


def read_config(kind: str) -> dict[str, Any]:
    """Return the config.json of a random model of a family."""
    with torch.device("meta"):
        model = make_model(kind, (SERVED | OTHERS)[kind])
    config: dict[str, Any] = json.loads(json.dumps(model.config.to_dict(), default=str))
    return config | {"architectures": [type(model).__name__]}


def tell(layer: LayerShape) -> tuple[Any, ...]:
    """Return what planning needs of a layer."""
    numbers = layer.weights, layer.active_weights, layer.kv_width, layer.window
    return layer.kind, *numbers, layer.num_experts, layer.num_active_experts


@pytest.mark.parametrize("kind", OURS)
def test_shape_is_that_of_the_adapter(kind: str) -> None:
    config = read_config(kind)
    found, known = ESTIMATED.read_shape(config), SPECS[config["architectures"][0]].adapter.load().read_shape(config)
    assert list(map(tell, found.layers)) == list(map(tell, known.layers))
    assert list_ends(found) == list_ends(known)


def list_ends(shape: ModelShape) -> tuple[Any, ...]:
    """Return what a shape says beside its layers."""
    sizes = shape.hidden_size, shape.vocab_size, shape.context_length, shape.before_weights, shape.after_weights
    return *sizes, shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.is_tied


@pytest.mark.parametrize("kind", OTHERS)
def test_parameters_are_those_of_the_model(kind: str) -> None:
    shape = ESTIMATED.read_shape(read_config(kind))
    with torch.device("meta"):
        model = make_model(kind, OTHERS[kind])
    ends = shape.before_weights + shape.after_weights
    assert ends + sum(layer.weights for layer in shape.layers) == sum(each.numel() for each in model.parameters())
    parts = {ESTIMATED.find_part(name) for name, _ in model.named_parameters()}
    assert parts == {"before", "after", *range(len(shape.layers))}


@pytest.mark.parametrize("kind", ["deepseek_v3", "nemotron_h", "qwen3_next"])
def test_layers_with_something_other_than_keys_and_values_are_refused(kind: str) -> None:
    with pytest.raises(Unsupported):
        ESTIMATED.read_shape(read_config(kind))


@pytest.mark.parametrize(
    ("name", "value"), [("num_hidden_layers", 10**9), ("num_local_experts", 10**9), ("hidden_size", 2**40)]
)
def test_model_that_no_machine_holds_is_not_built(name: str, value: int) -> None:
    for config in ({name: value}, {"text_config": {name: value}}):
        with pytest.raises(Unsupported, match=f"'{name}' in config.json is {value}, and at most"):
            ESTIMATED.read_shape({**read_config("cohere"), **config})


def test_code_that_a_model_brings_is_not_run() -> None:
    config = {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": {"AutoConfig": "code.OwnConfig"}}
    with pytest.raises(Unsupported, match="transformers does not build this model"):
        ESTIMATED.read_shape(config)


def test_tensor_of_no_part_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"'model.vision.patch.weight' belongs"):
        ESTIMATED.find_part("model.vision.patch.weight")
