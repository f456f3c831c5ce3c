from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parallax_core.api import (
    DType,
    LayerRange,
    LayerShape,
    ModelShape,
    Plane,
    StagePlan,
    TokenUse,
    Unsupported,
    check_device,
    check_plain_stage,
    choose_layers,
    refuse_leases,
)


def make_plan(start: int = 0, stop: int = 0, dtype: DType = "auto", device: str = "") -> StagePlan:
    layers = LayerRange(start, stop) if start or stop else None
    return StagePlan(model=Path("model"), layers=layers, dtype=dtype, device=device)


def test_layers_are_those_of_the_plan_or_all() -> None:
    assert choose_layers(make_plan(1, 3), 4) == LayerRange(1, 3)
    assert choose_layers(make_plan(), 4) == LayerRange(0, 4)


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (4, 5), (-1, 4), (2, 2), (3, 1)])
def test_layers_that_do_not_exist_are_refused(start: int, stop: int) -> None:
    with pytest.raises(Unsupported, match=f"layers {start}-{stop} are not"):
        choose_layers(make_plan(start, stop), 4)


def test_device_and_dtype_are_those_of_the_backend() -> None:
    for plan in (make_plan(), make_plan(dtype="float32", device="cpu")):
        check_device(plan, ("float32",), ("cpu",))
    for plan in (make_plan(dtype="float16"), make_plan(device="cuda:1")):
        with pytest.raises(Unsupported) as caught:
            check_device(plan, ("float32",), ("cpu",))
        assert "float32" in caught.value.hint or "cpu" in caught.value.hint


def test_leases_are_refused_by_the_name_of_the_backend() -> None:
    refuse_leases(make_plan(), "mine")
    with pytest.raises(Unsupported, match="'mine' cannot be shared by leases") as caught:
        refuse_leases(replace(make_plan(), leased=True), "mine")
    assert "another backend" in caught.value.hint


LAYER = LayerShape(kind="full", weights=1, active_weights=1, kv_width=8)


def make_shape(*layers: LayerShape) -> ModelShape:
    return ModelShape(
        hidden_size=4,
        vocab_size=8,
        context_length=16,
        num_heads=1,
        num_kv_heads=1,
        head_dim=4,
        layers=layers,
        before_weights=1,
        after_weights=1,
        is_tied=False,
    )


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (make_shape(LAYER, replace(LAYER, kv_width=0, source=0)), "layer 1 reads the keys"),
        (
            make_shape(
                replace(LAYER, gives=(Plane("hidden", (4,)), Plane("chosen", (2,)))),
                replace(LAYER, takes=("hidden", "chosen")),
            ),
            "'chosen' crosses the border before layer 1",
        ),
        (make_shape(replace(LAYER, gives=(Plane("hidden", (3, 4)),)), LAYER), r"\(3, 4\) instead of \(4,\)"),
        (make_shape(LAYER, replace(LAYER, kind="state", kv_width=0, state_width=8)), "layer 1 has a recurrent state"),
        (make_shape(LAYER, replace(LAYER, tokens=TokenUse(has_embedding=True))), "layer 1 needs the tokens"),
    ],
)
def test_what_a_plain_stage_cannot_hold_is_refused_by_name(tmp_path: Path, shape: ModelShape, reason: str) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["OddForCausalLM"]}')
    plan = StagePlan(model=tmp_path, shape=shape)
    with pytest.raises(Unsupported, match=f"on Engine cannot hold layers 1-2 of OddForCausalLM: .*{reason}") as caught:
        check_plain_stage(plan, LayerRange(1, 2), "Engine")
    assert "serve the model whole on Engine" in caught.value.hint


def test_plain_layers_and_unknown_families_are_not_refused() -> None:
    check_plain_stage(replace(make_plan(), shape=make_shape(LAYER, LAYER)), LayerRange(1, 2), "Engine")
    check_plain_stage(make_plan(), LayerRange(1, 2), "Engine")


def test_whole_model_has_no_borders() -> None:
    shape = make_shape(replace(LAYER, tokens=TokenUse(has_embedding=True)), replace(LAYER, kv_width=0, source=0))
    check_plain_stage(replace(make_plan(), shape=shape), LayerRange(0, 2), "Engine")
