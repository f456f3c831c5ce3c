from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Unsupported
from parallax_core.api.deployment import ModelFamily, PluginHost, find_family
from parallax_core.api.source import INDEX
from parallax_core.testing.model import write_checkpoint
from parallax_models.check.weight_check import OTHER, PREDICTION, check_weights, read_total
from tests.support.checkpoints import save_family

HIDDEN, INNER, EXPERTS, VOCAB = 32, 48, 6, 97
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
Shapes = dict[str, tuple[int, ...]]


def find() -> ModelFamily:
    """Return the family of a dense model; its formula counts no experts."""
    family = find_family(PluginHost.prepare(), CONFIG)
    assert family is not None
    return family


def make_mlp(prefix: str) -> Shapes:
    return {f"{prefix}.{name}_proj.weight": (INNER, HIDDEN) for name in ("gate", "up", "down")}


def make_shapes(num_layers: int = 2, *, is_sparse: bool = False, **others: tuple[int, ...]) -> Shapes:
    shapes: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,), **others}
    for number in range(num_layers):
        layer = f"model.layers.{number}"
        shapes |= {f"{layer}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{layer}.input_layernorm.weight": (HIDDEN,), f"{layer}.post_attention_layernorm.weight": (HIDDEN,)}
        prefixes = [f"{layer}.mlp.experts.{expert}" for expert in range(EXPERTS)] if is_sparse else [f"{layer}.mlp"]
        for prefix in prefixes:
            shapes |= make_mlp(prefix)
    return shapes


def check(folder: Path, shapes: Shapes) -> Any:
    family = find()
    write_checkpoint(folder, CONFIG, shapes)
    return check_weights(family, family.adapter.read_shape(CONFIG), folder)


def index(folder: Path, shapes: Shapes, size: int) -> Any:
    """Compare with an index, without any header."""
    folder.mkdir(exist_ok=True)
    files = dict.fromkeys(shapes, "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": files}))
    family = find()
    return check_weights(family, family.adapter.read_shape(CONFIG), folder)


def test_layers_of_a_right_adapter_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    counts = check(tmp_path / "m", make_shapes())
    assert counts.keys() == {0, 1, "before", "after"}
    assert counts[0].least == counts[0].most == find().adapter.read_shape(CONFIG).layers[0].weights


def test_dense_formula_for_experts_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"counts 8,768 parameters in layer 0, .* has 31,808: it counts no experts"):
        check(tmp_path / "m", make_shapes(is_sparse=True))


def test_dense_formula_for_experts_is_refused_by_the_index_alone(tmp_path: Path) -> None:
    shapes, many = make_shapes(is_sparse=True), 10**6
    with pytest.raises(Unsupported, match=r"20,672 parameters, .* has 1,000,000 bytes: it counts no experts"):
        index(tmp_path, shapes, many)
    assert read_total(tmp_path) == many


def test_one_layer_that_differs_is_named(tmp_path: Path) -> None:
    shapes = make_shapes()
    shapes["model.layers.1.mlp.up_proj.weight"] = (INNER * 2, HIDDEN)
    with pytest.raises(Unsupported, match="in layer 1"):
        check(tmp_path / "m", shapes)


def test_layer_without_tensors_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="no tensor of layer 1, of 2 layers"):
        check(tmp_path / "m", make_shapes(1))


@pytest.mark.parametrize("size", [4 * 20_672, 2 * 20_672, 20_672, 20_672 // 2])
def test_index_in_any_usual_precision_fits(size: int, tmp_path: Path) -> None:
    assert index(tmp_path, make_shapes(), size)[1].without_header == 9


def test_heads_of_multi_token_prediction_are_left_aside(tmp_path: Path) -> None:
    shapes = make_shapes(3) | {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "visual.patch.weight": (4, 4)}
    counts = check(tmp_path / "m", shapes)
    one = find().adapter.read_shape(CONFIG).layers[0].weights
    found = counts[PREDICTION]
    assert (found.tensors, found.least, found.num_bytes) == (10, one + 2 * HIDDEN**2, 4 * (one + 2 * HIDDEN**2))
    assert counts[OTHER].tensors == 1
    assert counts.keys() == {0, 1, "before", "after", PREDICTION, OTHER}


def test_nothing_is_known_of_a_folder_with_config_json_alone(tmp_path: Path) -> None:
    family = find()
    assert check_weights(family, family.adapter.read_shape(CONFIG), tmp_path) == {}


def test_slices_of_tensors_of_every_layer_count_with_the_layers(tmp_path: Path) -> None:
    save_family("gemma4_text", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    family = find_family(PluginHost.prepare(), config)
    assert family is not None
    shape = family.adapter.read_shape(config)
    counts = check_weights(family, shape, tmp_path)
    assert counts["every"].tensors == 3
    layers = (replace(shape.layers[0], weights=2 * counts["every"].most + counts[0].most), *shape.layers[1:])
    with pytest.raises(Unsupported, match="parameters in layer 0"):
        check_weights(family, replace(shape, layers=layers), tmp_path)
