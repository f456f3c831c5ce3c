"""Leases of loaded layers: in every form of weights, on the code of transformers, and on a device."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from parallax_backend_torch import backend, gpu_claim, loaded
from parallax_backend_torch.devices import claim_device
from parallax_backend_torch.layer_factory import LayerFactory
from parallax_backend_torch.network import Runner
from parallax_backend_torch.stage import StageParts
from parallax_core.api import LayerRange, LeasedStage, Stage, StagePlan
from parallax_core.testing.checks.chain import Chain
from parallax_core.testing.checks.lease import LeaseChecks
from tests.support.checkpoints import LAYERS, save_family
from tests.support.pretence import Pretence, pretend_device
from tests.support.torch_backend import TorchBackend

ROOM = 2**21
"""Bytes there are."""
WHOLE = LayerRange(0, LAYERS)


@pytest.fixture(scope="session")
def find_family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that finds the checkpoint of a family."""

    @cache
    def find(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("families") / kind
        save_family(kind, folder)
        return folder

    return find


class Leased(LeaseChecks):
    """The tests of leases, with a family and options."""

    exact = False
    margin = 2e-3
    num_layers = LAYERS
    splits: tuple[tuple[int, ...], ...] | None = ((1,), (1, 3))
    kind = "llama"
    options: dict[str, Any] = {}  # noqa: RUF012 -- of the class
    folder: Path

    @pytest.fixture(autouse=True)
    def _make_folder(self, find_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = find_family(self.kind)
        monkeypatch.setattr(backend, "find_room", lambda _: ROOM)

    def open_stage(self, layers: LayerRange | None) -> Stage:
        """Open layers of the model."""
        return self._open(layers)

    def open_leased(self, layers: LayerRange | None) -> Stage | None:
        """Load layers of the model for leases."""
        return self._open(layers, leased=True)

    def _open(self, layers: LayerRange | None, *, leased: bool = False) -> Stage:
        plan = StagePlan(model=self.folder, layers=layers, leased=leased, options=self.options)
        return TorchBackend().open_stage(plan)


class TestIntegers(Leased):
    """Weights of 4 bits, and of 8 where those are too few; activations are rounded, by rows of a batch."""

    margin = 5e-2
    options = {"weights": "int4"}  # noqa: RUF012 -- of the class


class TestTransformers(Leased):
    """The code of transformers."""

    options = {"generic": "always"}  # noqa: RUF012 -- of the class


class TestTransformersWithWindows(Leased):
    """The code of transformers, with a tied embedding and two kinds of layers."""

    kind = "gemma3_text"
    options = {"generic": "always"}  # noqa: RUF012 -- of the class


class OnDevice(Leased):
    """A device that is not there, with recorded decodes."""

    splits = ((1,),)

    @pytest.fixture(autouse=True)
    def _pretend(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        pretend_device(monkeypatch, ROOM)
        with Pretence():
            yield


@pytest.mark.nightly
class TestDevice(OnDevice):
    """All that leases promise."""


def test_leases_of_a_device_equal_stages_and_share_nothing(
    find_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_device(monkeypatch, ROOM)
    monkeypatch.setattr(backend, "find_room", lambda _: ROOM)
    kit = OnDevice()
    kit.folder = find_family(kit.kind)
    with Pretence():
        kit.test_lease_equals_the_stage_of_its_layers()
        kit.test_leases_share_nothing()
        kit.test_leases_have_pages_of_their_own()


@pytest.mark.parametrize("options", [{}, {"generic": "always"}])
def test_leases_read_and_copy_no_weights(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_family("llama", tmp_path / "model")
    stage = load(tmp_path / "model", options)
    shutil.rmtree(tmp_path / "model")
    for name in ("make_linear", "make_vector"):
        monkeypatch.setattr(LayerFactory, name, None)
    parts = [stage.lease(LayerRange(*pair), 0.25) for pair in ((0, 2), (2, LAYERS))]
    whole = stage.lease(WHOLE, 0.5)
    assert sum(part.info.weight_bytes for part in parts) == whole.info.weight_bytes == stage.info.weight_bytes
    assert Chain(parts).trace_new((1, 2, 3)) == Chain([whole]).trace_new((1, 2, 3))
    stage.close()


def test_half_of_the_layers_with_half_of_the_memory_has_the_pages_of_all(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    stage = load(tmp_path)
    pages = [pool.num_pages for pool in stage.info.pools]
    for pair in ((0, LAYERS // 2), (LAYERS // 2, LAYERS)):
        assert [pool.num_pages for pool in stage.lease(LayerRange(*pair), 0.5).info.pools] == pages
    stage.close()


@pytest.mark.parametrize("options", [{}, {"generic": "always"}])
def test_closed_stage_holds_no_weights(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = list[weakref.ref[Runner]]()

    def make_parts(runner: Runner, *rest: Any) -> StageParts:
        runners.append(weakref.ref(runner))
        return StageParts(runner, *rest)

    monkeypatch.setattr(loaded, "StageParts", make_parts)
    save_family("llama", tmp_path)
    stage = load(tmp_path, options)
    lease = stage.lease(WHOLE, 0.5)
    Chain([lease]).trace_new((1, 2, 3))
    [runner] = runners
    assert runner() is not None
    stage.close()
    assert runner() is None


def test_stage_claims_its_gpu_until_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_device(monkeypatch, ROOM)
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(gpu_claim.tempfile, "gettempdir", lambda: str(tmp_path / "locks"))  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    save_family("llama", tmp_path)
    with Pretence():
        stage = load(tmp_path, memory_fraction=0.5)
        stage.lease(WHOLE, 1.0).close()
        claims = [claim_device(StagePlan(model=tmp_path))]
        stage.close()
        claims.append(claim_device(StagePlan(model=tmp_path)))
        assert [claim.device for claim in claims] == ["cuda:1", "cuda:0"]
        for claim in claims:
            claim.release()


def load(folder: Path, options: dict[str, str] | None = None, memory_fraction: float = 1e-3) -> LeasedStage:
    """Load the layers of a model for leases."""
    plan = StagePlan(model=folder, memory_fraction=memory_fraction, leased=True, options=options or {})
    stage = TorchBackend().open_stage(plan)
    assert isinstance(stage, LeasedStage)
    return stage
