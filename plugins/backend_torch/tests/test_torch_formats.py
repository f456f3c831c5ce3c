"""Quantised checkpoints are served as the floats that they stand for, whole and in stages."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import mlx.core as mx
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from parallax_backend_torch.grid_rows import GridRows, find_product
from parallax_backend_torch.kernels.linear import pack_rows
from parallax_backend_torch.mxfp4 import widen_blocks
from parallax_core.api import Answer, Drawn, DType, LayerRange, ParallaxError, StagePlan, Unsupported
from parallax_core.testing.checks.chain import Chain
from parallax_formats import group_tensors
from tests.support.checkpoints import save_family
from tests.support.quantised import (
    FORMATS,
    Parts,
    as_tensor,
    draw_words,
    read_folder,
    stack_experts,
    to_torch,
    write_pair,
)
from tests.support.torch_backend import TorchBackend
from tests.support.tried_formats import TRIED

LAYERS, PROMPT = 3, (5, 9, 2, 7, 1, 30, 12)
WHOLE = LayerRange(0, LAYERS)


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


@pytest.mark.parametrize("bits", [2, 4, 5, 6, 8])
@pytest.mark.parametrize("group", [32, 64])
def test_codes_keep_their_numbers_to_float16(bits: int, group: int) -> None:
    weight = torch.randn(48, 128, generator=torch.Generator().manual_seed(bits))
    words = dict(zip(("weight", "scales", "biases"), mx.quantize(mx.array(weight.numpy()), group, bits), strict=True))
    config = {"quantization": {"group_size": group, "bits": bits}}
    matrix = group_tensors(config, {f"a.{word}": as_tensor(to_torch(part)) for word, part in words.items()})["a.weight"]
    kind = find_product(matrix.grid)
    assert kind == ("int4" if bits <= 4 else "int8_low")
    found, wanted = pack_rows(GridRows(matrix), kind).to_dense(), torch.from_numpy(matrix.read(0, 48))
    assert bool(((found - wanted).abs() <= 2**-10 * wanted.abs().max()).all())


@pytest.mark.parametrize("method", ["mlx", "awq", "compressed-tensors", "fp8", "gptq", "experts"])
def test_codes_stay_codes_unless_floats_are_asked_for(plain: Path, experts: Path, tmp_path: Path, method: str) -> None:
    is_stacked = method == "experts"
    coded, floats = write_pair(experts if is_stacked else plain, tmp_path, "mlx" if is_stacked else method)
    if is_stacked:
        save_file(stack_experts(load_file(coded / "model.safetensors")), coded / "model.safetensors")
    sizes, answers = [], []
    for folder, dtype in ((floats, "float32"), (coded, "float32"), (coded, "auto")):
        stage = TorchBackend().open_stage(StagePlan(model=folder, dtype=cast("DType", dtype), memory_fraction=0.01))
        sizes.append(stage.info.weight_bytes)
        with Chain([stage]) as chain:
            answers.append(chain.trace(chain.open(len(PROMPT)), PROMPT))
    is_fine = method in {"mlx", "awq", "compressed-tensors"}  # steps of few bits in every matrix
    assert sizes[0] == sizes[1] > (4 if is_fine else 2.9) * sizes[2]
    wanted, exact, near = ([each for each in found if isinstance(each, Drawn)] for found in answers)
    assert exact == wanted
    for ours, theirs in zip(near, wanted, strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=0.1 if is_stacked else 0.02)
        near_by = 0.1 if is_stacked else 0.02
        assert [value for _, value in ours.top] == pytest.approx([value for _, value in theirs.top], abs=near_by)


def test_scales_too_large_for_codes_are_refused_by_name(plain: Path, tmp_path: Path) -> None:
    coded, _ = write_pair(plain, tmp_path, "compressed-tensors")
    tensors = load_file(coded / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight_scale"] *= 1e8
    save_file(tensors, coded / "model.safetensors")
    with pytest.raises(Unsupported, match=r"scales of model\.layers\.0\.mlp\.up_proj are too large"):
        TorchBackend().open_stage(StagePlan(model=coded, memory_fraction=0.01))


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


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts") / "plain"
    save_family("qwen3_moe", folder, num_hidden_layers=LAYERS, hidden_size=64, moe_intermediate_size=64)
    return folder


@pytest.mark.parametrize("method", FORMATS)
def test_answers_of_experts_are_those_of_the_floats(experts: Path, tmp_path: Path, method: str) -> None:
    coded, floats = write_pair(experts, tmp_path, method)
    wanted = score(floats, WHOLE)
    assert len({str(answer) for answer in wanted}) == len(PROMPT)
    assert score(coded, LayerRange(0, 2), LayerRange(2, LAYERS)) == wanted
    if method == "mlx":
        stacked = stack_experts(load_file(coded / "model.safetensors"))
        assert any("switch_mlp" in name for name in stacked)
        save_file(stacked, coded / "model.safetensors")
    assert score(coded, WHOLE) == wanted


def test_experts_of_gpt_oss_stay_codes(tmp_path: Path) -> None:
    coded, floats = tmp_path / "coded", tmp_path / "floats"
    save_family("gpt_oss", coded, hidden_size=64, intermediate_size=64)
    tensors = read_folder(coded)
    for path in coded.glob("*.safetensors*"):
        path.unlink()
    shutil.copytree(coded, floats)
    stacks = {name: tensors.pop(name) for name in list(tensors) if re.search(r"experts\.\w+_proj$", name)}
    random, widened = torch.Generator().manual_seed(1), dict[str, torch.Tensor]()
    parts: dict[str, torch.Tensor] = {}
    for name, (experts, inputs, outputs) in ((name, stack.shape) for name, stack in stacks.items()):
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=random)
        scales = torch.randint(118, 122, blocks.shape[:-1], dtype=torch.uint8, generator=random)
        parts |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        whole = torch.stack([widen_blocks(*each) for each in zip(blocks, scales, strict=True)])
        widened[name] = whole.float().transpose(1, 2).contiguous()
    save_file({**tensors, **parts}, coded / "model.safetensors", {"format": "pt"})
    save_file({**tensors, **widened}, floats / "model.safetensors", {"format": "pt"})
    config = json.loads((coded / "config.json").read_text())
    (coded / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    layers = LayerRange(0, config["num_hidden_layers"])
    assert score(coded, layers) == score(floats, layers)
    plans = [StagePlan(model=folder, memory_fraction=0.01) for folder in (coded, floats)]
    with ExitStack() as stack:
        stages = [TorchBackend().open_stage(plan) for plan in plans]
        kept, whole = ([stack.enter_context(Chain([stage]))] for stage in stages)
        near, wanted = (chain.trace(chain.open(len(PROMPT)), PROMPT) for [chain] in (kept, whole))
    ours, theirs = ([each.logprobs for each in found if isinstance(each, Drawn)] for found in (near, wanted))
    assert ours == [pytest.approx(each, abs=0.02) for each in theirs]
    assert stages[0].info.weight_bytes < 0.6 * stages[1].info.weight_bytes


WIDE = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 64, "head_dim": 16}
"""Widths of whole groups of 32."""


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "method"), [(kind, each) for kind, found in TRIED.items() for each in found])
def test_answers_of_each_family_are_those_of_the_floats(tmp_path: Path, kind: str, method: str) -> None:
    save_family(kind, tmp_path / "plain", **WIDE)
    coded, floats = write_pair(tmp_path / "plain", tmp_path, method)
    layers = LayerRange(0, json.loads((coded / "config.json").read_text())["num_hidden_layers"])
    assert score(coded, layers) == score(floats, layers)


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
