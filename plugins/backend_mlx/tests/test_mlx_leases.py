"""Leases of a loaded model: modules of their own, and the arrays of the model. The kit tests what they compute."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx import backend
from parallax_backend_mlx.backend import MlxBackend
from parallax_backend_mlx.loaded_model import LoadedModel
from parallax_backend_mlx.model_slice import keep_model
from parallax_backend_mlx.runtime import mx
from parallax_core.api import LayerRange, LeasedStage, StagePlan, Unsupported
from parallax_core.testing.checks.chain import Chain
from tests.support.mlx_models import AFM7, RWKV7, make_model

LAYERS = 4
WHOLE = LayerRange(0, LAYERS)
MEBI = 2**20
LARGE = {"num_hidden_layers": LAYERS, "hidden_size": 512, "intermediate_size": 2048}
"""Changes of a Llama that give it some 50 MiB of weights."""
TEXT = (1, 2, 3, 4, 5)


def load(folder: Path, layers: LayerRange | None = None) -> LeasedStage:
    """Load the layers of a model for leases."""
    stage = MlxBackend().open_stage(StagePlan(model=folder, layers=layers, leased=True))
    assert isinstance(stage, LeasedStage)
    return stage


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "find_room", lambda: MEBI)


def test_leases_read_and_copy_no_weights(make_llama: Callable[..., Path]) -> None:
    folder = make_llama(**LARGE)
    stage = load(folder)
    shutil.rmtree(folder)
    loaded = mx.get_active_memory()
    assert stage.info.weight_bytes > 30 * MEBI
    parts = [stage.lease(LayerRange(*pair), 0.25) for pair in ((0, 2), (2, LAYERS))]
    whole = stage.lease(WHOLE, 0.5)
    assert Chain(parts).trace_new(TEXT) == Chain([whole]).trace_new(TEXT)
    assert mx.get_active_memory() - loaded < 4 * MEBI
    assert sum(part.info.weight_bytes for part in parts) >= whole.info.weight_bytes == stage.info.weight_bytes
    stage.close()


def test_closed_stage_holds_no_weights(make_llama: Callable[..., Path]) -> None:
    before = mx.get_active_memory()
    stage = load(make_llama(**LARGE))
    lease = stage.lease(LayerRange(1, 3), 0.5)
    assert mx.get_active_memory() - before > 30 * MEBI
    stage.close()
    assert lease.info.layers == LayerRange(1, 3)
    assert mx.get_active_memory() - before < 4 * MEBI


def test_half_of_the_layers_with_half_of_the_memory_has_the_pages_of_all(make_llama: Callable[..., Path]) -> None:
    stage = load(make_llama(num_hidden_layers=LAYERS))
    pages = [pool.num_pages for pool in stage.info.pools]
    for pair in ((0, 2), (2, 4)):
        assert [pool.num_pages for pool in stage.lease(LayerRange(*pair), 0.5).info.pools] == pages
    stage.close()


def test_leases_of_the_same_layers_run_one_network() -> None:
    loaded = LoadedModel(keep_model(make_model({"model_type": "llama"})))
    part = loaded.find_network(LayerRange(1, 3))
    assert loaded.find_network(LayerRange(1, 3)) is part
    assert loaded.find_network(LayerRange(1, 4)) is not part


@pytest.mark.parametrize(
    ("config", "words"), [(RWKV7, "layer 2 reads a further output of layer 1"), (AFM7, "not in one list")]
)
def test_layers_that_cannot_be_run_separately_are_leased_together(config: dict[str, Any], words: str) -> None:
    loaded = LoadedModel(keep_model(make_model(config)))
    with pytest.raises(Unsupported, match=words):
        loaded.find_network(LayerRange(0, 2))
    network = loaded.find_network(loaded.layers).network
    assert network.run_tokens(TEXT, network.make_cache(), [2]).shape == (1, 97)


def test_model_that_cannot_be_copied_is_refused() -> None:
    model = make_model({"model_type": "llama"})
    model.lock = threading.Lock()
    with pytest.raises(Unsupported, match="the modules of this model cannot be copied: cannot pickle") as caught:
        LoadedModel(keep_model(model)).find_network(WHOLE)
    assert "another backend" in caught.value.hint
