"""The whole stage contract, on tiny models that keep keys and values, windows, states and latents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import LayerRange, Stage, StagePlan
from parallax_core.testing.stage import StageConformance


class Tiny(StageConformance):
    """A stage of one of the tiny models."""

    exact = False
    margin = 2e-3
    architecture: str
    folder: Path

    @pytest.fixture(autouse=True)
    def _make_folder(self, make_tiny: Callable[..., Path]) -> None:
        self.folder = make_tiny(self.architecture)

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return MlxBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32"))


class TestLlama(Tiny):
    """Keys and values."""

    architecture = "llama"
    num_layers = 4


class TestGemma(Tiny):
    """Sliding windows beside them."""

    architecture = "gemma3_text"
    num_layers = 4


class TestQwen(Tiny):
    """Recurrent states beside them."""

    architecture = "qwen3_next"
    num_layers = 4


class TestDeepseek(Tiny):
    """Latents instead of them."""

    architecture = "deepseek_v3"
    num_layers = 3
