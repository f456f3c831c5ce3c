"""The whole contract of backends and stages, on tiny models that the real vLLM computes: whole, and in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from parallax_backend_vllm import stage_backend
from parallax_backend_vllm.backend import VllmBackend
from parallax_backend_vllm.compat_stage import StageWorker
from parallax_backend_vllm.plugin import parallax_register_backends
from parallax_core.api import BackendFailed, LayerRange, Stage, StageBatch, StagePlan, Truncate
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.checks.failure import poison
from parallax_core.testing.stage import StageConformance
from parallax_sampling_torch import engine_stage

LAYERS = 4
ROOM = 2**21
"""Bytes of memory that are free, so that tests which fill the pools are quick."""
OPTIONS = {"threads": 1, "block_size": 32}


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
    def _make_folder(self, find_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = find_model(self.kind)
        monkeypatch.setattr(stage_backend, "_find_room", lambda _: ROOM)

    def make_plan(self, layers: LayerRange | None = None) -> StagePlan:
        """Return the plan of a stage."""
        return StagePlan(
            model=self.folder, layers=layers, dtype="float32", options=OPTIONS, max_batch_tokens=32, memory_fraction=0.5
        )

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return VllmBackend().open_stage(self.make_plan(layers))

    @contextmanager
    def plant_failure(self, broken: Stage) -> Iterator[None]:
        """Have no memory after vLLM has computed the rows, and written their keys and values."""
        del broken
        run = StageWorker.run

        def fail(*arguments: object) -> None:
            run(*arguments)  # type: ignore[arg-type]
            raise torch.OutOfMemoryError("out of memory on purpose")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StageWorker, "run", fail)
            yield


class TestLlama(BackendConformance, Tiny):
    """Keys and values; and what the backend refuses."""

    kind = "llama"

    def make_model(self) -> Path:
        """Return the folder of the model."""
        return self.folder

    def test_keys_that_are_no_numbers_are_gone_after_the_step_that_wrote_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens = tuple(range(5, 15))
        with self.open_parts((LAYERS // 2,)) as chain:
            expected = chain.trace_new(tokens)
            seq, (first, second) = chain.open(), chain.stages
            found = chain.trace(seq, tokens[:4])
            row = chain.row(seq, tokens[4:], *chain.draws(6))
            [hidden] = first.step(StageBatch((row,))).wait().tensors
            first.edit([Truncate(seq, 4)])
            monkeypatch.setattr(engine_stage, "check_given", lambda _: None)
            with pytest.raises(BackendFailed, match="are not finite"):
                second.step(StageBatch((row,), (poison(hidden, 0),)))
            found += chain.trace(seq, tokens[4:])
            self.compare(found, expected, "a sequence differs after a step with NaN")

    [spec] = parallax_register_backends()
    make_plan = Tiny.make_plan
    memory_fraction = 0.5
