"""Quantised checkpoints are served as the floats that they stand for, whole and in stages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from parallax_core.api import Answer, LayerRange, ParallaxError, StagePlan, Tensor, Unsupported
from parallax_core.testing.checks.chain import Chain
from parallax_formats import group_tensors
from parallax_sampling_torch.tensors import name_dtype
from tests.support.checkpoints import save_family
from tests.support.torch_backend import TorchBackend

LAYERS, PROMPT = 3, (5, 9, 2, 7, 1, 30, 12)
WHOLE = LayerRange(0, LAYERS)
Parts = Mapping[str, torch.Tensor]


def to_torch(array: mx.array) -> torch.Tensor:
    return torch.from_numpy(np.array(array.view(mx.uint32) if array.dtype == mx.uint32 else array))


def write_mlx(weight: torch.Tensor) -> Parts:
    found = mx.quantize(mx.array(weight.float().numpy()), 32, 4)
    return dict(zip(("weight", "scales", "biases"), map(to_torch, found), strict=True))


def write_fp8(weight: torch.Tensor) -> Parts:
    scale = torch.full((-(-weight.shape[0] // 32), -(-weight.shape[1] // 32)), 0.01)
    return {"weight": (weight.float() / 0.01).to(torch.float8_e4m3fn), "weight_scale_inv": scale}


def draw_words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, shape, generator=torch.Generator().manual_seed(7)).int()


def write_awq(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    scales = torch.rand(inputs // 32, rows, generator=torch.Generator().manual_seed(8)) * 0.02
    return {
        "qweight": draw_words(inputs, rows // 8),
        "qzeros": draw_words(inputs // 32, rows // 8),
        "scales": scales.half(),
    }


def write_gptq(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    order = torch.randperm(inputs, generator=torch.Generator().manual_seed(9)).int() // 32
    scales = torch.rand(inputs // 32, rows, generator=torch.Generator().manual_seed(8)) * 0.02
    words = {"qweight": draw_words(inputs // 8, rows), "qzeros": draw_words(inputs // 32, rows // 8)}
    return {**words, "scales": scales.half(), "g_idx": order}


def write_packed(weight: torch.Tensor) -> Parts:
    rows, inputs = weight.shape
    scales = torch.rand(rows, inputs // 32, generator=torch.Generator().manual_seed(8)) * 0.02
    shape = torch.tensor([rows, inputs])
    return {"weight_packed": draw_words(rows, inputs // 8), "weight_scale": scales.bfloat16(), "weight_shape": shape}


Writer = Callable[[torch.Tensor], Parts]
FORMATS: dict[str, tuple[Writer, dict[str, Any]]] = {
    "mlx": (write_mlx, {"quantization": {"group_size": 32, "bits": 4}}),
    "fp8": (write_fp8, {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}}),
    "awq": (write_awq, {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32}}),
    "gptq": (write_gptq, {"quantization_config": {"quant_method": "gptq", "bits": 4, "desc_act": True}}),
    "compressed-tensors": (
        write_packed,
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            }
        },
    ),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def as_tensor(found: torch.Tensor) -> Tensor:
    return Tensor(name_dtype(found.dtype), tuple(found.shape), bytes(found.contiguous().view(torch.uint8).numpy()))


def write_pair(plain: Path, root: Path, method: str) -> tuple[Path, Path]:
    """Write a model in a format, and as the floats that it stands for."""
    writer, settings = FORMATS[method]
    tensors = load_file(plain / "model.safetensors")
    coded: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        stem = name.removesuffix(".weight")
        coded |= (
            {f"{stem}.{word}": part for word, part in writer(weight).items()} if "_proj" in name else {name: weight}
        )
    found = group_tensors(settings, {name: as_tensor(part) for name, part in coded.items() if "_proj" in name})
    floats = {name: torch.from_numpy(matrix.read(0, matrix.num_rows)) for name, matrix in found.items()}
    assert len(floats) == 7 * LAYERS
    folders = root / "coded", root / "floats"
    for folder, written, more in zip(folders, (coded, {**tensors, **floats}), (settings, {}), strict=True):
        shutil.copytree(plain, folder)
        save_file(written, folder / "model.safetensors")
        config = json.loads((plain / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **more}))
    return folders


def score(folder: Path, *ranges: LayerRange) -> list[Answer]:
    """Return what stages of these layers draw after each token of a prompt, with log-probabilities."""
    plans = [StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=0.01) for layers in ranges]
    with Chain([TorchBackend().open_stage(plan) for plan in plans]) as chain:
        return chain.trace(chain.open(len(PROMPT)), PROMPT)


@pytest.mark.parametrize("method", FORMATS)
def test_answers_are_those_of_the_floats(plain: Path, tmp_path: Path, method: str) -> None:
    coded, floats = write_pair(plain, tmp_path, method)
    wanted = score(floats, WHOLE)
    assert len({str(answer) for answer in wanted}) == len(PROMPT)
    assert score(coded, WHOLE) == wanted
    assert score(coded, LayerRange(0, 1), LayerRange(1, LAYERS)) == wanted


PUBLISHED = {
    "deepseek_v3": (r"_proj\.weight$", "weight_scale_inv", {}),
    "deepseek_v4": (r"\.w([123]|q_a|q_b|kv|o_a|o_b)\.weight$", "scale", {"scale_fmt": "ue8m0"}),
}
"""By model type: the names of the matrices that are stored in few bits, the word of their scales, and settings."""


def write_published(name: str, weight: torch.Tensor, word: str) -> Parts:
    """Return a weight as DeepSeek publishes it: FP8 in blocks of 128 x 128, and experts of V4 in MXFP4."""
    rows, inputs = weight.shape
    if word == "scale" and ".experts." in name:
        codes = draw_words(rows, inputs // 8).view(torch.int8)
        return {"weight": codes, word: torch.full((rows, inputs // 32), 0.125).to(torch.float8_e8m0fnu)}
    scale = torch.full((-(-rows // 128), -(-inputs // 128)), 2.0**-7)
    kind = torch.float8_e8m0fnu if word == "scale" else torch.float32
    return {"weight": (weight.float() * 128).to(torch.float8_e4m3fn), word: scale.to(kind)}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_deepseek_is_served_as_it_is_published(tmp_path: Path, kind: str) -> None:
    pattern, word, more = PUBLISHED[kind]
    folders = tmp_path / "coded", tmp_path / "floats"
    save_family(kind, folders[0], hidden_size=160, intermediate_size=64, moe_intermediate_size=64)
    tensors = {name: part for path in folders[0].glob("*.safetensors") for name, part in load_file(path).items()}
    config = json.loads((folders[0] / "config.json").read_text())
    settings = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], **more}
    shutil.rmtree(folders[0])
    coded: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        is_coded = re.search(pattern, name) is not None
        parts = write_published(name, weight, word) if is_coded else {"weight": weight}
        coded |= {name.removesuffix("weight") + each if is_coded else name: part for each, part in parts.items()}
    found = group_tensors(
        {"quantization_config": settings}, {name: as_tensor(part) for name, part in coded.items() if part.ndim}
    )
    assert sum(".experts." in name for name in found) > len(found) // 2
    floats = {name: torch.from_numpy(matrix.read(0, matrix.num_rows)) for name, matrix in found.items()}
    for folder, written, said in zip(folders, (coded, {**tensors, **floats}), (settings, None), strict=True):
        folder.mkdir()
        save_file(written, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps({**config, **({"quantization_config": said} if said else {})}))
    layers = config["num_hidden_layers"]
    wanted = score(folders[1], LayerRange(0, layers))
    assert score(folders[0], LayerRange(0, layers)) == wanted
    assert score(folders[0], LayerRange(0, 1), LayerRange(1, layers)) == wanted


def test_weights_take_the_memory_of_what_they_are_kept_as(plain: Path, tmp_path: Path) -> None:
    coded, floats = write_pair(plain, tmp_path, "gptq")
    sizes = {}
    for folder in (coded, floats):
        stage = TorchBackend().open_stage(StagePlan(model=folder, dtype="float32", memory_fraction=0.01))
        sizes[folder] = stage.info.weight_bytes
        stage.close()
    assert sizes[coded] == sizes[floats]


@pytest.mark.parametrize("word", ["g_idx", "scales", "qzeros"])
def test_damaged_weight_is_refused_by_name(plain: Path, tmp_path: Path, word: str) -> None:
    coded, _ = write_pair(plain, tmp_path, "gptq")
    tensors = load_file(coded / "model.safetensors")
    name = f"model.layers.1.mlp.up_proj.{word}"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, coded / "model.safetensors")
    with pytest.raises(ParallaxError, match=r"the weight model\.layers\.1\.mlp\.up_proj is not 4 bits of GPTQ"):
        score(coded, WHOLE)


def test_unknown_method_is_refused_by_name(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain, tmp_path / "model")
    config = json.loads((plain / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "exl3"}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    with pytest.raises(Unsupported, match="does not read the form of the weights: exl3"):
        score(tmp_path / "model", WHOLE)
