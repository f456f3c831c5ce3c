"""The MLX and the torch backend give the same logits for the same checkpoint, each alone and in one pipeline."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import Backend, Draw, LayerRange, StageInfo, StagePlan
from parallax_core.checkpoint.reader import find_locations
from parallax_core.testing.checks.chain import Chain
from tests.support.checkpoints import FAMILIES, LAYERS, save_family
from tests.support.families import VOCAB, make_tokens, read_logprobs
from tests.support.torch_backend import TorchBackend

BACKENDS: dict[str, Backend] = {"mlx": MlxBackend(), "torch": TorchBackend()}
TOLERANCE = 1e-3
LENGTH, SIZES = 40, (17, 7, 1, 15)
"""Longer than windows and pages, in chunks of several sizes."""
OPTIONS: dict[str, dict[str, int]] = {"torch": {"threads": 1}, "mlx": {}}
PIPELINES = {
    family: (("torch",), *pairs)
    for number, family in enumerate(FAMILIES)
    for pairs in [((("torch", "mlx"), ("mlx", "mlx")), (("mlx", "torch"), ("torch", "torch")))[number % 2]]
}
"""The pipelines of each family that are compared: every one with every second family, and alone with each."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("families") / str(request.param)
    save_family(str(request.param), path)
    return path


def open_chain(folder: Path, names: Sequence[str]) -> Chain:
    """Return a stage of each backend, with as many layers each."""
    each = LAYERS // len(names)
    ranges = [LayerRange(each * place, each * (place + 1)) for place in range(len(names))]
    plans = [StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=1e-3) for layers in ranges]
    pairs = zip(names, plans, strict=True)
    return Chain([BACKENDS[name].open_stage(replace(plan, options=OPTIONS[name])) for name, plan in pairs])


def read_infos(folder: Path, names: Sequence[str]) -> list[StageInfo]:
    with open_chain(folder, names) as chain:
        return [stage.info for stage in chain.stages]


def test_weights_are_named_alike_by_all_backends(folder: Path) -> None:
    [whole] = read_infos(folder, ("mlx",))
    numbered = {part for part in whole.weights_parts if part.rpartition(".")[2].isdecimal()}
    assert len(numbered) == LAYERS
    for names in PIPELINES[folder.name]:
        infos = read_infos(folder, names)
        assert set().union(*(info.weights_parts.items() for info in infos)) == set(whole.weights_parts.items()), names
        assert (len({whole.weights_version, *(info.weights_version for info in infos)}) == 1) == (len(names) == 1)


@pytest.mark.parametrize("name", BACKENDS)
def test_fine_tuned_layer_is_stated_as_another_by_its_stage_alone(folder: Path, tmp_path: Path, name: str) -> None:
    tuned = shutil.copytree(folder, tmp_path / "tuned")
    path, place = next(
        (path, place)
        for path in sorted(tuned.glob("*.safetensors"))
        for place in find_locations(path)
        if ".layers.3." in place.name
    )
    data = bytearray(path.read_bytes())
    data[place.stop - 1] ^= 1
    path.write_bytes(data)
    before, after = (read_infos(each, (name, name)) for each in (folder, tuned))
    assert before[0].weights_version == after[0].weights_version
    assert before[1].weights_version != after[1].weights_version
    differing = {part for part, digest in before[1].weights_parts.items() if after[1].weights_parts[part] != digest}
    assert [part.rpartition(".")[2] for part in differing] == ["3"]


def find_logprobs(folder: Path, names: tuple[str, ...]) -> torch.Tensor:
    """Return the log-probabilities after every token of two sequences that run together: [tokens, vocab size]."""
    texts, answers, at = (make_tokens(LENGTH, 1), make_tokens(LENGTH, 2)), [], 0
    with open_chain(folder, names) as chain:
        seqs = [chain.open() for _ in texts]
        for size in SIZES:
            rows = [
                chain.row(seq, text[at : at + size], *(Draw(offset, 1, VOCAB) for offset in range(size)))
                for seq, text in zip(seqs, texts, strict=True)
            ]
            answers += list(chain.step(*rows).answers)
            at += size
    return read_logprobs(answers)


def test_logits_are_those_of_the_mlx_backend(folder: Path) -> None:
    expected = find_logprobs(folder, ("mlx",))
    for names in PIPELINES[folder.name]:
        found = find_logprobs(folder, names)
        assert found.shape == (2 * LENGTH, VOCAB)
        assert float((found - expected).abs().max()) < TOLERANCE, names
