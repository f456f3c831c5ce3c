"""Tiny random models of every family give the logits of transformers, however they are split, batched and forked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_torch.tensor_file import Selection
from parallax_core.api import LayerRange, Leasing, StagePlan, Unsupported
from parallax_core.testing.model import read_checkpoint
from tests.support.checkpoints import FAMILIES, LAYERS, MORE, find_tensors, save_family
from tests.support.families import (
    SPLITS,
    TOLERANCE,
    TOLERANCES,
    Family,
    Trial,
    run_chunks,
    run_forks,
    run_ragged,
    run_returns,
)
from tests.support.torch_backend import TorchBackend, bring_family

LENGTH = 36
EDGES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 35)
"""Lengths around the ends of pages and windows."""
LONG = 108
"""So many tokens that windows forget some, and states take more than one chunk."""

OTHER_LAYERS = {
    "deepseek_v2": "experts of the best groups, by probability",
    "deepseek_v4": "windows beside compressed tokens, experts by token id, and streams that mix",
    "falcon_h1": "states beside keys and values",
    "glm4": "norms around each part, and rotated pairs of neighbours",
    "glm5_next": "streams, states with decays of channels, and an index of blocks that a layer may share",
    "granite": "factors of embedding, residual, scores and logits",
    "granitemoehybrid": "Mamba 2, with stacked experts",
    "hy_v4": "streams between layers, gates and sinks of latent attention, and clamped experts",
    "hunyuan_v1_moe": "rope before norms, and a router of another name",
    "kimi_linear": "decays of channels, and latent attention without positions",
    "lfm2": "short convolutions, and a final norm of another name",
    "llama4_text": "chunks of tokens, and experts whose inputs are scaled",
    "ministral3": "queries that grow with their position",
    "olmo3": "norms after each part, and of all queries together",
    "phi3": "fused matrices",
    "qwen3_5_text": "delta nets of separate matrices",
    "qwen4_exp_text": "streams with gates, n-grams, and an index of blocks with one key each",
    "smollm3": "layers without positions",
}
"""Of the further families one for each kind of layer that `FAMILIES` lack. ``benchmarks.families`` tries all."""

Make = Callable[[str], Family]


def mark_nightly(kind: str) -> Any:
    return pytest.param(kind, marks=pytest.mark.nightly)


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def make(kind: str) -> Family:
        return Family(kind, tmp_path_factory.mktemp("family") / kind, TorchBackend())

    return make


@pytest.mark.parametrize("cuts", SPLITS, ids=str)
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_transformers(family: Make, kind: str, cuts: tuple[int, ...]) -> None:
    with family(kind).open_chain(cuts, 1e-3) as chain:
        trial = Trial(family(kind), chain)
        for size in (LENGTH, 5):
            run_chunks(trial, LENGTH, size)
        run_chunks(trial, LONG, LONG)
        run_ragged(trial, LENGTH)
        assert trial.find_error() < TOLERANCES.get(kind, TOLERANCE)


@pytest.mark.parametrize("kind", [kind if kind in OTHER_LAYERS else mark_nightly(kind) for kind in MORE])
def test_logits_of_further_families_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    further = Family(kind, tmp_path, TorchBackend())
    legal = further.legal
    for cuts in ((), (legal[0], legal[-1])):
        with further.open_chain(cuts, 1e-3) as chain:
            trial = Trial(further, chain)
            run_chunks(trial, LENGTH, 5)
            run_ragged(trial, LENGTH)
            run_forks(trial, LENGTH, (16, 33))
            assert trial.find_error() < TOLERANCES.get(kind, TOLERANCE)


@pytest.mark.parametrize("kind", FAMILIES)
def test_stage_reads_the_tensors_of_its_layers_as_the_adapter_has_it(kind: str, tmp_path: Path) -> None:
    save_family(kind, tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    is_tied = checkpoint.config["tie_word_embeddings"]
    for start, stop in ((0, 1), (1, 3), (2, 4), (0, 4)):
        selection = Selection(LayerRange(start, stop), LAYERS, is_tied)
        assert set(filter(selection.wants, checkpoint.tensors)) == find_tensors(tmp_path, start, stop)


@pytest.mark.parametrize("kind", FAMILIES)
def test_forks_and_truncations_are_what_they_hold(family: Make, kind: str) -> None:
    with family(kind).open_chain((2,), 1e-3) as chain:
        trial = Trial(family(kind), chain)
        run_forks(trial, LENGTH, EDGES)
        has_states = any(pool.info.kind == "state" for pools in chain.pools for pool in pools)
        assert run_returns(trial, LENGTH, (*EDGES, LENGTH)) == (1 if has_states else len(EDGES) + 1)
        assert trial.find_error() < TOLERANCES.get(kind, TOLERANCE)


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
def test_windows_that_forgot_go_back_as_far_as_they_say(family: Make, kind: str) -> None:
    with family(kind).open_chain((), 1e-3) as chain:
        trial = Trial(family(kind), chain)
        assert 0 < run_returns(trial, LONG, range(0, LONG, 9)) < LONG // 9
        assert trial.find_error() < TOLERANCES.get(kind, TOLERANCE)


def test_layers_that_share_keys_are_not_cut_apart(tmp_path: Path) -> None:
    family = Family("gemma4_text", tmp_path, TorchBackend())
    assert family.legal == [1, 2, 3]
    assert family.find_refusal(4).endswith("between layers 3 and 4: layer 5 reads the keys of layer 3")
    plan = replace(bring_family(StagePlan(model=tmp_path, leased=True)), memory_fraction=1e-3)
    stage = TorchBackend().open_stage(plan)
    assert isinstance(stage, Leasing)
    with pytest.raises(Unsupported, match="between layers 5 and 6: layer 6 reads the keys of layer 4"):
        stage.lease(LayerRange(0, 6), 0.5)
    stage.lease(LayerRange(3, 7), 0.5).close()
    stage.close()
