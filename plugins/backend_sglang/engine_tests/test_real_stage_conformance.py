"""The whole contract of backends and stages, on tiny models that the real SGLang computes: whole, and in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from parallax_backend_sglang import stage_plan
from parallax_backend_sglang.backend import SglangBackend
from parallax_backend_sglang.plugin import parallax_register_backends
from parallax_backend_sglang.remote_stage import RemoteStage
from parallax_core.api import LayerRange, Stage, StagePlan
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.stage import StageConformance

LAYERS = 4
ROOM = 2**21
"""Bytes of memory that are free, so that tests which fill the pools are quick."""
OPTIONS = {"threads": 1}


@pytest.fixture(autouse=True)
def _limit_room(fork_stages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_plan, "_find_free", lambda _: ROOM)


class Tiny(StageConformance):
    """A stage of one of the tiny models."""

    exact = False
    margin = 2e-3
    longest = 80
    num_layers = LAYERS
    splits: tuple[tuple[int, ...], ...] | None = ((LAYERS // 2,), (1, 3))
    kind: str
    folder: Path

    @pytest.fixture(autouse=True)
    def _make_folder(self, find_model: Callable[..., Path]) -> None:
        self.folder = find_model(self.kind)

    def make_plan(self, layers: LayerRange | None = None) -> StagePlan:
        """Return the plan of a stage."""
        return StagePlan(
            model=self.folder, layers=layers, dtype="float32", options=OPTIONS, max_batch_tokens=32, memory_fraction=0.5
        )

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return SglangBackend().open_stage(self.make_plan(layers))

    @contextmanager
    def plant_failure(self, broken: Stage) -> Iterator[None]:
        """Have no memory after SGLang has computed the rows, and written their keys and values."""
        child = cast("Any", cast("RemoteStage", broken)._child)
        mark = Path(child.folder, "fail")
        mark.touch()
        yield
        mark.unlink()


class TestLlama(BackendConformance, Tiny):
    """Keys and values; and what the backend refuses."""

    kind = "llama"

    def make_model(self) -> Path:
        """Return the folder of the model."""
        return self.folder

    [spec] = parallax_register_backends()
    make_plan = Tiny.make_plan
    memory_fraction = 0.5
