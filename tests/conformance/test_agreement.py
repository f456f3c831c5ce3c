"""The MLX and the torch backend give the same logits for the same checkpoint, each alone and in one pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_torch.backend import TorchBackend
from parallax_core.api import Backend, Draw, LayerRange, StagePlan
from parallax_core.testing.checks.chain import Chain
from tests.checkpoints import FAMILIES, LAYERS, save_family
from tests.families import VOCAB, make_tokens, read_logprobs

BACKENDS: dict[str, Backend] = {"mlx": MlxBackend(), "torch": TorchBackend()}
TOLERANCE = 1e-3
LENGTH, SIZES = 40, (17, 7, 1, 15)
"""Longer than windows and pages, in chunks of several sizes."""
PIPELINES = (("torch",), ("torch", "torch"), ("mlx", "mlx"), ("mlx", "torch"), ("torch", "mlx"))


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("family") / str(request.param)
    save_family(str(request.param), path)
    return path


@pytest.fixture(autouse=True)
def _compute_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_TORCH__THREADS", "1")


def open_chain(folder: Path, names: Sequence[str]) -> Chain:
    """Return a stage of each backend, with as many layers each."""
    each = LAYERS // len(names)
    ranges = [LayerRange(each * place, each * (place + 1)) for place in range(len(names))]
    plans = [StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=1e-3) for layers in ranges]
    return Chain([BACKENDS[name].open_stage(plan) for name, plan in zip(names, plans, strict=True)])


@cache
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


@pytest.mark.parametrize("names", PIPELINES, ids="+".join)
def test_logits_are_those_of_the_mlx_backend(folder: Path, names: tuple[str, ...]) -> None:
    expected, found = find_logprobs(folder, ("mlx",)), find_logprobs(folder, names)
    assert found.shape == (2 * LENGTH, VOCAB)
    assert float((found - expected).abs().max()) < TOLERANCE
