"""How a stage is planned, and what it refuses before SGLang starts; needs no SGLang."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_backend_sglang import backend, stage_plan
from parallax_backend_sglang.arguments import Device, estimate_weights
from parallax_backend_sglang.backend import SglangBackend
from parallax_backend_sglang.settings import SglangSettings
from parallax_backend_sglang.stage_plan import check_settings, plan_stage
from parallax_backend_sglang.versions import REMEDY
from parallax_core.api import LayerRange, ParallaxError, StagePlan, Unsupported
from tests.support import family_plans
from tests.support.checkpoints import LAYERS, save_family

CPU = Device(is_cpu=True)


@pytest.fixture(autouse=True)
def _limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_plan, "_find_free", lambda _: 2**24)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_family("qwen2", tmp_path)
    return tmp_path


def make_plan(model: Path, **changes: Any) -> StagePlan:
    return StagePlan(**{"model": model, "layers": LayerRange(1, 3), "memory_fraction": 0.5, **changes})


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (SglangSettings(tensor_parallel=2), "tensor_parallel"),
        (SglangSettings(max_loras=1), "LoRA"),
        (SglangSettings(mem_fraction_static=0.5), "mem_fraction_static"),
        (SglangSettings(prefix_caching="off"), "prefix_caching"),
    ],
)
def test_option_that_stages_do_not_have_is_refused_by_name(settings: SglangSettings, word: str) -> None:
    with pytest.raises(Unsupported, match=word) as caught:
        check_settings(settings)
    assert "--backend sglang" in caught.value.hint
    assert "sglang" not in sys.modules


@pytest.mark.parametrize(("family", "architecture"), family_plans.REFUSED.items())
def test_family_that_stages_cannot_hold_is_refused_before_anything_is_loaded(
    tmp_path: Path, family: str, architecture: str
) -> None:
    with pytest.raises(Unsupported, match=f"a stage on SGLang cannot hold layers 1-.* of {architecture}: "):
        plan_stage(family_plans.make_plan(tmp_path, family, architecture), SglangSettings(), CPU)
    assert "sglang" not in sys.modules


def test_middle_stage_takes_and_gives_the_residual_stream(model: Path) -> None:
    load = plan_stage(make_plan(model), SglangSettings(), CPU)
    info = load.info
    assert (info.layers, info.num_layers, info.dtype) == (LayerRange(1, 3), LAYERS, "float32")
    [[given], [taken]] = info.gives, info.takes
    assert given == taken
    assert (given.width, given.dtype) == (32, "float32")
    assert load.arguments["max_total_tokens"] == info.pools[0].num_pages * info.pools[0].page_size
    assert load.arguments["disable_radix_cache"]
    assert (load.architecture, load.model) == ("Qwen2ForCausalLM", str(model))


def test_cache_is_bounded_by_memory_and_by_its_setting(model: Path) -> None:
    plan = make_plan(model)
    [pool] = plan_stage(plan, SglangSettings(), CPU).info.pools
    token_bytes = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, width, bytes of float32
    assert pool.num_pages * pool.page_size * token_bytes <= 2**23
    [fewer] = plan_stage(plan, SglangSettings(max_total_tokens=4 * pool.page_size), CPU).info.pools
    assert fewer.num_pages == 4


def test_weights_are_counted_in_the_dtype_that_is_computed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    size = estimate_weights(model, "auto") * 2 // LAYERS
    monkeypatch.setattr(stage_plan, "_find_free", lambda _: size * 3 // 2)
    with pytest.raises(ParallaxError, match="are free"):
        plan_stage(make_plan(model), SglangSettings(), CPU)
    assert plan_stage(make_plan(model, dtype="bfloat16"), SglangSettings(), CPU).info.dtype == "bfloat16"


def test_leases_are_refused(model: Path) -> None:
    with pytest.raises(Unsupported, match="'sglang' cannot be shared by leases") as caught:
        plan_stage(make_plan(model, leased=True), SglangSettings(), CPU)
    assert "another backend" in caught.value.hint


def test_ends_of_the_model_have_no_neighbour(model: Path) -> None:
    info = plan_stage(make_plan(model, layers=None), SglangSettings(), CPU).info
    assert (info.layers, info.takes, info.gives) == (LayerRange(0, LAYERS), (), ())


def test_latents_are_a_pool_of_their_own(tmp_path: Path) -> None:
    save_family("deepseek_v3", tmp_path)
    [pool] = plan_stage(make_plan(tmp_path), SglangSettings(), CPU).info.pools
    assert pool.kind == "latent"


def test_layers_that_do_not_fit_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_plan, "_find_free", lambda _: 100)
    with pytest.raises(ParallaxError, match="are free") as caught:
        plan_stage(make_plan(model), SglangSettings(), CPU)
    assert "fewer layers" in caught.value.hint


@pytest.mark.parametrize("version", ["0.5.17", "0.5.24", ""])
def test_release_outside_the_range_is_refused_by_a_stage(
    version: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "find_installed", lambda: version)
    with pytest.raises(Unsupported, match=version or "not installed") as caught:
        SglangBackend().open_stage(make_plan(model))
    assert caught.value.hint == REMEDY
