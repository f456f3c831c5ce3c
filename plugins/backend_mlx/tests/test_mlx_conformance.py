"""The whole stage contract, on tiny models of every family: whole, and as two halves in a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from parallax_backend_mlx import backend, runner_choice
from parallax_backend_mlx.backend import MlxBackend, open_network
from parallax_backend_mlx.cache_layout import Layout
from parallax_backend_mlx.checkpoint import Checkpoint
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.selftest import choose_grouping
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import LayerRange, Stage, StagePlan
from parallax_core.testing.checks.lease import LeaseChecks
from parallax_core.testing.stage import StageConformance
from tests.support.checkpoints import LAYERS, save_family

KNOWN: dict[tuple[str, LayerRange], Grouping | None] = {}
"""How rows of a stage were found to run."""
LOADED: dict[tuple[str, LayerRange | None], tuple[Network, int]] = {}
"""Layers that were loaded before. They keep nothing of a sequence: that is in the pages of a stage."""


@pytest.fixture(scope="session")
def find_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that finds the checkpoint of a family."""

    @cache
    def find(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("families") / kind
        save_family(kind, folder)
        return folder

    return find


class Tiny(LeaseChecks, StageConformance):
    """A stage of one of the tiny models."""

    exact = False
    margin = 2e-3
    num_layers = LAYERS
    splits: tuple[tuple[int, ...], ...] | None = ((LAYERS // 2,),)
    kind: str
    folder: Path
    room = 2**19
    """Bytes there are: some thirty pages, so that tests which fill the pools are quick."""

    @pytest.fixture(autouse=True)
    def _make_folder(self, find_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = find_family(self.kind)
        monkeypatch.setattr(backend, "find_room", lambda: self.room)
        monkeypatch.setattr(backend, "open_network", self._open_network)
        monkeypatch.setattr(runner_choice, "choose_grouping", self._choose_grouping)

    def _choose_grouping(self, network: Network, layout: Layout) -> Grouping | None:
        """Try a stage out when it is first opened, and not in each of the tests."""
        key = self.kind, network.layers
        if key not in KNOWN:
            KNOWN[key] = choose_grouping(network, layout)
        return KNOWN[key]

    def _open_network(self, plan: StagePlan, checkpoint: Checkpoint) -> tuple[Network, int]:
        """Load layers when they are first asked for, and not in each of the tests."""
        key = self.kind, plan.layers
        if key not in LOADED:
            LOADED[key] = open_network(plan, checkpoint)
        return LOADED[key]

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return MlxBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32"))

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Load layers of the model for leases."""
        return MlxBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32", leased=True))

    @contextmanager
    def plant_failure(self, stage: Stage) -> Iterator[None]:
        """Have no memory for the answers, after layers have written keys, values and states."""
        del stage

        def fail(*_: object) -> None:
            raise MemoryError("out of memory on purpose")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MlxStage, "_answer", fail)
            yield


class TestLlama(Tiny):
    """Keys and values."""

    kind = "llama"
    splits = None


@pytest.mark.nightly
class TestQwen2(Tiny):
    """Biases."""

    kind = "qwen2"


@pytest.mark.nightly
class TestQwen3(Tiny):
    """A norm of every head, and a tied embedding."""

    kind = "qwen3"


@pytest.mark.nightly
class TestQwen3Moe(Tiny):
    """Experts."""

    kind = "qwen3_moe"


@pytest.mark.nightly
class TestGemma3(Tiny):
    """Sliding windows beside what sees everything."""

    kind = "gemma3_text"


@pytest.mark.nightly
class TestGptOss(Tiny):
    """Sinks, windows, experts with biases."""

    kind = "gpt_oss"


@pytest.mark.nightly
class TestDeepseek(Tiny):
    """Latents instead of keys and values."""

    kind = "deepseek_v3"


class TestQwen3Next(Tiny):
    """Recurrent states beside keys and values."""

    kind = "qwen3_next"
    room = 2**21
