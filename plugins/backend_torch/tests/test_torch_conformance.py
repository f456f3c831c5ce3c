"""The whole contract of backends and stages, on tiny models of every family: whole, and as two halves in a row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from parallax_backend_torch import backend
from parallax_backend_torch.answer import Pending
from parallax_backend_torch.plugin import parallax_register_backends
from parallax_core.api import LayerRange, Stage, StagePlan
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.lease import LeaseChecks
from parallax_core.testing.checks.window import StageInput
from parallax_core.testing.stage import StageConformance
from tests.support.checkpoints import LAYERS, save_family
from tests.support.torch_backend import TorchBackend

ROOM = 2**21
"""Bytes there are, so that tests which fill the pools are quick."""


@pytest.fixture(scope="session")
def find_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that finds the checkpoint of a family."""

    @cache
    def find(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("families") / kind
        save_family(kind, folder)
        return folder

    return find


class Near(list[float]):
    """Numbers that equal others which are nearly the same."""

    def __eq__(self, other: object) -> bool:
        return list(self) == pytest.approx(other, abs=1e-4)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


class Tiny(LeaseChecks, StageConformance):
    """A stage of one of the tiny models."""

    exact = False
    margin = 2e-3
    num_layers = LAYERS
    splits: tuple[tuple[int, ...], ...] | None = ((LAYERS // 2,),)
    kind: str
    folder: Path

    @pytest.fixture(autouse=True)
    def _make_folder(self, find_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = find_family(self.kind)
        monkeypatch.setattr(backend, "find_room", lambda _: ROOM)

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return TorchBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32"))

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Load layers of the model for leases."""
        return TorchBackend().open_stage(StagePlan(model=self.folder, layers=layers, dtype="float32", leased=True))

    @contextmanager
    def plant_failure(self, stage: Stage) -> Iterator[None]:
        """Have no memory for the draw, after layers have written keys, values and states."""
        del stage

        def fail(*_: object) -> None:
            raise torch.OutOfMemoryError("out of memory on purpose")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Pending, "wait", fail)
            yield


class TestLlama(BackendConformance, Tiny):
    """Keys and values; and what a backend refuses."""

    kind = "llama"
    splits = None
    [spec] = parallax_register_backends()
    memory_fraction = 0.5

    def make_model(self) -> Path:
        """Return the folder of the model."""
        return self.folder


@pytest.mark.needs_cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
class TestLlamaOnCuda(Tiny):
    """Decodes as CUDA graphs."""

    kind = "llama"

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model on the device."""
        return TorchBackend().open_stage(self._plan(layers))

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Load layers of the model for leases on the device."""
        return TorchBackend().open_stage(replace(self._plan(layers), leased=True))

    def _plan(self, layers: LayerRange | None) -> StagePlan:
        return StagePlan(model=self.folder, layers=layers, dtype="float32", device="cuda")


class TestInt8Cache(Tiny):
    """Keys and values in 8 bits. A number halfway between two codes may get either, and differs by 1 / 127."""

    kind = "llama"
    margin = 2e-2

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return TorchBackend().open_stage(self._plan(layers))

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Load layers of the model for leases."""
        return TorchBackend().open_stage(replace(self._plan(layers), leased=True))

    def _plan(self, layers: LayerRange | None) -> StagePlan:
        return StagePlan(model=self.folder, layers=layers, dtype="float32", options={"kv_cache_dtype": "int8"})


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


class TestGemma3(Tiny):
    """Sliding windows beside what sees everything."""

    kind = "gemma3_text"


@pytest.mark.nightly
class TestGptOss(Tiny):
    """Sinks, windows, experts with biases.

    A token that changes may go to another expert, whose other tokens then share a product with more or fewer rows: what
    their window does not see changes them by rounding.
    """

    kind = "gpt_oss"

    def _take(self, chain: Chain, given: StageInput) -> object:
        found: Any = super()._take(chain, given)
        return Near(array("f", found[0]).tolist())


@pytest.mark.nightly
class TestDeepseek(Tiny):
    """Latents instead of keys and values."""

    kind = "deepseek_v3"


class TestQwen3Next(Tiny):
    """Recurrent states beside keys and values."""

    kind = "qwen3_next"
