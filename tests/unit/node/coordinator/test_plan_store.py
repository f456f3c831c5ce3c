from __future__ import annotations

import stat
from pathlib import Path

import pytest

from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.placement import PlacedStage
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.coordinator.plan_store import FormerPlan, PlanStore

PLAN = FormerPlan(
    {
        0: (PlacedStage("b/1", LayerRange(0, 10)), PlacedStage("a/1", LayerRange(10, 30))),
        2: (PlacedStage("c/1", LayerRange(0, 30)),),
    },
    {"a/1": 2**40, "b/1": 1, "c/1": 5},
)


def test_plan_of_each_model_is_kept(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "cluster" / "plans.db")
    assert store.find("hf:org/model") == FormerPlan()
    store.save("hf:org/model", PLAN)
    store.save("hf:org/other", FormerPlan())
    assert PlanStore(tmp_path / "cluster" / "plans.db").find("hf:org/model") == PLAN
    store.save("hf:org/model", FormerPlan({0: PLAN.pipelines[2]}, {"c/1": 5}))
    assert store.find("hf:org/model") == FormerPlan({0: PLAN.pipelines[2]}, {"c/1": 5})


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    PlanStore(tmp_path / "cluster" / "plans.db").save("model", PLAN)
    assert stat.S_IMODE((tmp_path / "cluster" / "plans.db").stat().st_mode) == 0o600


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plans.db").write_bytes(b"no database" * 100)
    with pytest.raises(ParallaxError, match="the last plan in"):
        PlanStore(tmp_path / "plans.db").find("model")
