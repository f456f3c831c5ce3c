"""Only the files of a stage's own layers are needed and read, whatever mlx-lm makes of the names in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.runtime import flatten_tree, load_model, mx
from parallax_backend_mlx.wanted_positions import Wanted
from parallax_core.api import LayerRange, ParallaxError, StagePlan, cache_folder
from parallax_core.testing.holes import punch_holes
from tests.support.checkpoints import FAMILIES, INDEX, KINDS, LAYERS, find_layer, find_tensors, save_random

Weights = dict[str, mx.array]
STAGES = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
LINEAR = ("qwen3_next", "qwen3_5")
"""Their stages need a layer of each kind, or see `test_layout_that_no_file_tells_is_refused`."""


@pytest.fixture(scope="module")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns a folder with a random model, to be left as it is."""
    made = tmp_path_factory.mktemp("models")

    def make(kind: str) -> Path:
        folder = made / kind
        if not folder.exists():
            save_random(kind, folder)
        return folder

    return make


def load_weights(folder: Path, layers: tuple[int, int] | None = None) -> Weights:
    plan = StagePlan(model=folder, layers=LayerRange(*layers) if layers else None)
    checkpoint = read_checkpoint(folder, is_part=layers is not None)
    model_slice, _ = load_network(plan, checkpoint.tensors, checkpoint.holes)
    return dict(flatten_tree(model_slice.model.parameters()))  # type: ignore[no-untyped-call]


def find_files(folder: Path, start: int, stop: int) -> set[str]:
    """Return the files that hold tensors of a stage."""
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    tied = not any("lm_head" in name for name in index)

    def is_needed(name: str) -> bool:
        if (number := find_layer(name)) is not None:
            return start <= number < stop
        if "embed_tokens" in name:
            return start == 0 or (tied and stop == LAYERS)
        return stop == LAYERS

    return {file for name, file in index.items() if is_needed(name)}


def copy_files(folder: Path, names: set[str], target: Path) -> Path:
    """Copy config and index, and the weight files called ``names``."""
    target.mkdir()
    for name in {"config.json", INDEX, *names}:
        shutil.copy(folder / name, target)
    return target


@pytest.mark.parametrize("kind", KINDS)
def test_stage_needs_the_files_of_its_own_layers_only(
    make_folder: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    folder = make_folder(kind)
    whole = load_weights(folder)
    files = {path.name for path in folder.glob("*.safetensors")}
    stages = [(0, 1), (1, 3), (2, 4)] if kind in LINEAR else STAGES
    for stage in stages:
        needed = find_files(folder, *stage)
        assert needed < files
        part = load_weights(copy_files(folder, needed, tmp_path / str(stage[0] * 10 + stage[1])), stage)
        assert part
        assert all(mx.array_equal(array, whole[name]).item() for name, array in part.items())


def test_data_of_other_layers_is_never_read(make_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = make_folder("mixtral")
    whole = load_weights(folder)
    spoilt = Path(shutil.copytree(folder, tmp_path / "model"))
    for path in spoilt.glob("*.safetensors"):
        if path.name not in find_files(folder, 1, 3):
            content = bytearray(path.read_bytes())
            content[8 + int.from_bytes(content[:8], "little") :] = b""
            path.write_bytes(content + b"\xff" * (path.stat().st_size - len(content)))
    part = load_weights(spoilt, (1, 3))
    assert all(mx.array_equal(array, whole[name]).item() for name, array in part.items())
    assert mx.isnan(load_weights(spoilt)["model.layers.0.self_attn.q_proj.weight"]).any().item()


@pytest.mark.parametrize("kind", ["llama", "mixtral", "deepseek_v3"])
def test_missing_file_of_a_stage_is_named(make_folder: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    folder = make_folder(kind)
    for number, name in enumerate(sorted(find_files(folder, 2, 3))):
        left = copy_files(folder, find_files(folder, 1, 4) - {name}, tmp_path / str(number))
        with pytest.raises(ParallaxError, match=name) as caught:
            load_weights(left, (2, 3))
        assert caught.value.hint


def test_tensor_that_is_not_in_its_file_is_named(make_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The index says where it is; what counts is what the file says."""
    broken, name = Path(shutil.copytree(make_folder("llama"), tmp_path / "model")), "model.layers.2.mlp.up_proj.weight"
    path = broken / json.loads((broken / INDEX).read_text())["weight_map"][name]
    weights = {each: array for each, array in mx.load(str(path)).items() if each != name}  # type: ignore[union-attr]
    mx.eval(weights)
    mx.save_safetensors(str(path), weights)
    with pytest.raises(ParallaxError, match=name):
        load_weights(broken, (2, 3))


@pytest.mark.parametrize("kind", FAMILIES)
def test_stage_needs_the_tensors_of_its_own_layers_only(
    make_folder: Callable[[str], Path], kind: str, tmp_path: Path
) -> None:
    folder = make_folder(kind)
    whole = load_weights(folder)
    for start, stop in STAGES:
        fetched = Path(shutil.copytree(folder, tmp_path / f"{start}-{stop}"))
        punch_holes(fetched, find_tensors(folder, start, stop).__contains__)
        part = load_weights(fetched, (start, stop))
        assert part
        assert all(mx.array_equal(array, whole[name]).item() for name, array in part.items())


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_oss"])
def test_hole_in_a_stage_is_named_and_never_read(make_folder: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    for number, name in enumerate(sorted(find_tensors(make_folder(kind), 3, 4))):
        fetched = Path(shutil.copytree(make_folder(kind), tmp_path / str(number)))
        punch_holes(fetched, lambda tensor, hole=name: tensor != hole)  # type: ignore[misc]
        with pytest.raises(ParallaxError, match=r"is (not )?on this machine") as caught:
            load_weights(fetched, (3, 4))
        assert "parallax models pull" in caught.value.hint
        load_weights(fetched, (1, 2))
        with pytest.raises(ParallaxError, match="without"):
            load_weights(fetched)


def test_whole_model_needs_every_file(make_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = make_folder("llama")
    left = copy_files(folder, find_files(folder, 0, 3), tmp_path / "left")
    with pytest.raises(ParallaxError, match="lacks model-"):
        load_weights(left)


def test_layout_that_no_file_tells_is_refused(tmp_path: Path) -> None:
    """Whether norms are to be shifted shows in the convolution of a linear layer, which this stage has not."""
    folder = tmp_path / "model"
    save_random("qwen3_5", folder, 100)
    left = copy_files(folder, find_files(folder, 1, 2), tmp_path / "left")
    with pytest.raises(ParallaxError, match=r"conv1d.*that file is missing") as caught:
        load_weights(left, (1, 2))
    wanted = caught.value.hint.split()[1]
    shutil.copy(folder / wanted, left)
    whole = load_weights(folder)
    part = load_weights(left, (1, 2))
    assert all(mx.array_equal(array, whole[name]).item() for name, array in part.items())


def test_quantised_stages_equal_the_quantised_whole(llama: Path, tmp_path: Path) -> None:
    from mlx_lm.utils import quantize_model, save_model

    config = json.loads((llama / "config.json").read_text())
    model, _ = load_model(llama, model_config={"rope_theta": 250.0})
    model, changed = quantize_model(model, config, group_size=32, bits=8)
    save_model(tmp_path, model)
    (tmp_path / "config.json").write_text(json.dumps(changed))
    whole = load_weights(tmp_path)
    parts = [load_weights(tmp_path, stage) for stage in ((0, 1), (1, 3))]
    assert set().union(*parts) == set(whole)
    for part in parts:
        assert all(mx.array_equal(array, whole[name]).item() for name, array in part.items())


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The folder of a real model, kept so that it is fetched once."""
    home = cache_folder("test-model")
    command = [str(Path(sys.executable).with_name("parallax")), "models", "pull", "smollm2-135m"]
    environment = os.environ | {"PARALLAX_HOME": str(home)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=170)
    return Path(done.stdout.strip())


QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def generate(networks: Sequence[Network], prompt: Sequence[int], count: int) -> list[int]:
    """Return ``count`` greedy tokens through a chain of networks."""
    caches = [network.make_cache() for network in networks]
    tokens = list(prompt)
    output: list[int] = []
    while len(output) < count:
        inputs, hidden = mx.array([tokens], dtype=mx.int32), None
        for network, held in zip(networks, caches, strict=True):
            last = Wanted(mx.array([len(tokens) - 1], dtype=mx.int32))
            hidden = network.run(inputs, hidden, held, last)
        assert hidden is not None
        found: Any = mx.argmax(hidden, axis=-1).tolist()
        tokens = list(found)
        output += tokens
    return output


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [pytest.param([0, 13, 30], marks=pytest.mark.nightly), [0, 1, 29, 30]])
def test_real_model_answers_the_same_in_stages(smollm2: Path, cuts: list[int]) -> None:
    from tokenizers import Tokenizer

    tokenizer: Any = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    tensors = read_checkpoint(smollm2).tensors
    plans = [StagePlan(model=smollm2, layers=LayerRange(*pair)) for pair in pairwise(cuts)]
    networks = [Network(load_network(plan, tensors)[0]) for plan in plans]
    answer = generate(networks, tokenizer.encode(QUESTION, add_special_tokens=False).ids, 8)
    assert answer == [504, 3575, 282, 4649, 314, 7042, 30, 2]
    assert tokenizer.decode(answer) == "The capital of France is Paris."
