"""Weights in forms that MLX has no products for are unpacked exactly, whole and for a stage."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from parallax_core.api import Answer, Drawn, LayerRange, ParallaxError, StagePlan
from parallax_core.api.source import ByteRanges, FetchedRange, find_locations, name_journal
from parallax_core.testing.checks.chain import Chain
from parallax_source_pypi.convert import ConversionOptions, convert_gguf
from tests.support.mlx_backend import BroughtMlx
from tests.support.quantised import FORMATS, write_pair
from tests.support.tinyllama import LAYERS as GGUF_LAYERS
from tests.support.tinyllama import TinyLlama
from tests.support.torch_backend import TorchBackend

LAYERS, PROMPT = 3, (5, 9, 2, 7, 1, 30, 12)
PACKED = [method for method in FORMATS if method != "mlx"]


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


def score(backend: type[BroughtMlx | TorchBackend], folder: Path, *cuts: int) -> list[Answer]:
    """Return what stages between these layers draw after each token of a prompt, with log-probabilities."""
    ranges = [LayerRange(first, last) for first, last in pairwise(cuts)]
    exact = {"weights": "float32"} if backend is TorchBackend else {}
    plans = [
        StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=0.01, options=exact)
        for layers in ranges
    ]
    with Chain([backend().open_stage(plan) for plan in plans]) as chain:
        return chain.trace(chain.open(len(PROMPT)), PROMPT)


def list_tokens(answers: list[Answer]) -> list[int]:
    return [answer.tokens[0] for answer in answers if isinstance(answer, Drawn)]


@pytest.mark.parametrize("method", PACKED)
def test_answers_are_those_of_the_floats_and_of_torch(plain: Path, tmp_path: Path, method: str) -> None:
    coded, floats = write_pair(plain, tmp_path, method)
    wanted = score(BroughtMlx, floats, 0, LAYERS)
    assert len({str(answer) for answer in wanted}) == len(PROMPT)
    assert score(BroughtMlx, coded, 0, LAYERS) == wanted
    assert score(BroughtMlx, coded, 0, 1, LAYERS) == score(BroughtMlx, floats, 0, 1, LAYERS)
    assert list_tokens(wanted) == list_tokens(score(TorchBackend, coded, 0, LAYERS))


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a GGUF file as a folder that keeps its blocks, and as one with floats."""
    root = tmp_path_factory.mktemp("gguf")
    path = TinyLlama(packing=gguf.GGMLQuantizationType.Q4_1).write(root / "tiny.gguf")
    folders = root / "blocks", root / "floats"
    for folder, keeps in zip(folders, (True, False), strict=True):
        folder.mkdir()
        convert_gguf(path, folder, lambda *_: None, "convert", ConversionOptions(keeps_blocks=keeps))
    return folders


def test_gguf_blocks_are_those_of_torch_whole_and_as_stages(blocks: tuple[Path, Path]) -> None:
    wanted = score(BroughtMlx, blocks[0], 0, GGUF_LAYERS)
    assert score(BroughtMlx, blocks[0], 0, 1, GGUF_LAYERS) == wanted
    assert list_tokens(wanted) == list_tokens(score(TorchBackend, blocks[0], 0, GGUF_LAYERS))
    assert list_tokens(wanted) == list_tokens(score(BroughtMlx, blocks[1], 0, GGUF_LAYERS))


@pytest.mark.parametrize("method", ["gptq", "fp8"])
def test_stage_of_a_part_needs_its_own_layers_only(plain: Path, tmp_path: Path, method: str) -> None:
    coded, floats = write_pair(plain, tmp_path, method)
    ranges = [LayerRange(0, 1), LayerRange(1, LAYERS)]
    wanted = score(BroughtMlx, floats, 0, 1, LAYERS)
    folders = [Path(shutil.copytree(coded, tmp_path / str(number))) for number in range(len(ranges))]
    for folder, layers in zip(folders, ranges, strict=True):
        leave_out(
            folder, {f".layers.{number}." for number in range(LAYERS) if not layers.start <= number < layers.stop}
        )
    plans = [
        StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=0.01)
        for folder, layers in zip(folders, ranges, strict=True)
    ]
    with Chain([BroughtMlx().open_stage(plan) for plan in plans]) as chain:
        assert chain.trace(chain.open(len(PROMPT)), PROMPT) == wanted
    with pytest.raises(ParallaxError, match="is not on this machine"):
        BroughtMlx().open_stage(replace(plans[0], layers=LayerRange(0, 2)))


def leave_out(folder: Path, words: set[str]) -> None:
    """Make holes of the tensors whose names have one of these words."""
    path = folder / "model.safetensors"
    locations = find_locations(path)
    kept = ByteRanges([(0, min(each.start for each in locations))])
    with path.open("r+b") as file:
        for each in locations:
            if any(word in each.name for word in words):
                file.seek(each.start)
                file.write(bytes(len(each)))
            else:
                kept.add(each.start, each.stop)
    name_journal(path).write_text("".join(f"{FetchedRange(start, stop, '0' * 64)}\n" for start, stop in kept))
