from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from parallax_core.api import DType, LayerRange, StagePlan, Unsupported, check_device, choose_layers, refuse_leases


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
