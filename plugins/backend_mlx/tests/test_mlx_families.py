"""Tiny random models of every family give the logits of transformers, however they are split, batched and forked.

A part of what ``benchmarks/families.py`` tries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from parallax_backend_mlx import loading
from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import StagePlan
from tests.support.checkpoints import FAMILIES
from tests.support.families import (
    SPLITS,
    TOLERANCE,
    Family,
    Trial,
    pair,
    run_chunks,
    run_forks,
    run_ragged,
    run_returns,
)

LENGTH = 36
EDGES = (0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 35)
"""Lengths around the ends of pages and windows."""
LONG = 108
"""So many tokens that windows forget some: a window of 8, 64 to go back, and a page."""

Make = Callable[[str], Family]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Make:
    @cache
    def make(kind: str) -> Family:
        return Family(kind, tmp_path_factory.mktemp("family") / kind, MlxBackend())

    return make


@pytest.mark.parametrize(("kind", "cuts"), pair(FAMILIES, SPLITS), ids=str)
def test_logits_are_those_of_transformers(family: Make, kind: str, cuts: tuple[int, ...]) -> None:
    with family(kind).open_chain(cuts) as chain:
        trial = Trial(family(kind), chain)
        for size in (LENGTH, 5):
            run_chunks(trial, LENGTH, size)
        run_ragged(trial, LENGTH)
        assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize(("kind", "cuts"), pair(FAMILIES, ((), (2,))), ids=str)
def test_forks_and_truncations_are_what_they_hold(family: Make, kind: str, cuts: tuple[int, ...]) -> None:
    with family(kind).open_chain(cuts) as chain:
        trial = Trial(family(kind), chain)
        run_forks(trial, LENGTH, EDGES)
        has_states = any(pool.info.kind == "state" for pools in chain.pools for pool in pools)
        assert run_returns(trial, LENGTH, (*EDGES, LENGTH)) == (1 if has_states else len(EDGES) + 1)
        assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss"])
def test_windows_that_forgot_go_back_as_far_as_they_say(family: Make, kind: str) -> None:
    with family(kind).open_chain(()) as chain:
        trial = Trial(family(kind), chain)
        assert 0 < run_returns(trial, LONG, range(0, LONG, 9)) < LONG // 9
        assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize("kind", FAMILIES)
def test_family_runs_its_rows_together(family: Make, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        MlxBackend().open_stage(StagePlan(model=family(kind).folder)).close()
    assert "rows run together: they give the same results as alone" in caplog.text


@pytest.mark.parametrize("kind", ["gemma3_text", "gpt_oss", "starcoder2"])
def test_comparison_sees_what_mlx_lm_computes_otherwise(
    family: Make, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = find_error(family(kind))
    monkeypatch.setattr(loading, "correct_model", lambda *_: None)
    assert find_error(family(kind)) > 10 * right


def find_error(family: Family) -> float:
    with family.open_chain(()) as chain:
        trial = Trial(family, chain)
        run_chunks(trial, LONG, LENGTH)
        return trial.find_error()


@pytest.mark.parametrize("cuts", [(), (2,)])
def test_factors_of_longrope_are_those_of_short_sequences(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    """mlx-lm takes the factors of long ones, whatever the length."""
    factors = {"long_factor": [2.0, 3.0, 5.0, 9.0], "short_factor": [1.0, 1.1, 1.3, 1.6]}
    rope = {"rope_type": "longrope", "rope_theta": 250.0, "original_max_position_embeddings": 64} | factors
    changes = {"rope_parameters": rope, "original_max_position_embeddings": 64, "sliding_window": None}
    family = Family("phi3", tmp_path, MlxBackend(), **changes)
    with family.open_chain(cuts) as chain:
        assert chain.first.context_length == 64
        run_chunks(trial := Trial(family, chain), 40, 7)
        assert trial.find_error() < TOLERANCE


@pytest.mark.parametrize("cuts", [(), (2,)])
def test_corrections_of_ernie_choose_experts(family: Make, cuts: tuple[int, ...]) -> None:
    """mlx-lm drops them."""
    with family("ernie4_5_moe").open_chain(cuts) as chain:
        run_chunks(trial := Trial(family("ernie4_5_moe"), chain), LENGTH, 5)
        assert trial.find_error() < TOLERANCE
