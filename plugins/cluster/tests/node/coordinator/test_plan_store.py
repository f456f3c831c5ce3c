from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from parallax_cluster.node.coordinator.plan_store import FormerPlan, PlanStore
from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.placement import PlacedStage, StageLease
from parallax_core.contracts.stage import LayerRange

LEASE = StageLease(2, LayerRange(0, 20), 0.25)
PLAN = FormerPlan(
    {
        0: (PlacedStage("b/1", LayerRange(0, 10)), PlacedStage("a/1", LayerRange(10, 30))),
        2: (PlacedStage("c/1", LayerRange(0, 30)),),
        3: (PlacedStage("d/1", LayerRange(0, 12), LEASE), PlacedStage("e/1", LayerRange(12, 30))),
    },
    {"a/1": 2**40, "b/1": 1, "c/1": 5},
)

UNSHARED = (PlacedStage("d/1", LayerRange(0, 12)), PlacedStage("e/1", LayerRange(12, 30)))


def test_plan_of_each_model_is_kept(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "cluster" / "plans.db")
    assert store.find("hf:org/model") == FormerPlan()
    store.save("hf:org/model", PLAN)
    store.save("hf:org/other", FormerPlan())
    assert PlanStore(tmp_path / "cluster" / "plans.db").find("hf:org/model") == PLAN
    store.save("hf:org/model", FormerPlan({0: PLAN.pipelines[2]}, {"c/1": 5}))
    assert store.find("hf:org/model") == FormerPlan({0: PLAN.pipelines[2]}, {"c/1": 5})


def test_further_models_of_each_first_one_are_kept(tmp_path: Path) -> None:
    store = PlanStore(tmp_path / "plans.db")
    assert store.find_loaded("hf:org/model") == ()
    store.save_loaded("hf:org/model", ["org/b", "org/a"])
    store.save_loaded("hf:org/other", ["org/c"])
    assert PlanStore(tmp_path / "plans.db").find_loaded("hf:org/model") == ("org/b", "org/a")
    store.save_loaded("hf:org/model", [])
    assert (store.find_loaded("hf:org/model"), store.find_loaded("hf:org/other")) == ((), ("org/c",))


def test_file_of_an_earlier_release_keeps_its_plans(tmp_path: Path) -> None:
    path = tmp_path / "plans.db"
    store = PlanStore(path)
    store.save("hf:org/model", PLAN)
    with closing(sqlite3.connect(path)) as database:
        database.executescript("DROP TABLE loaded; DROP TABLE lease; PRAGMA user_version = 1;")
    assert store.find_loaded("hf:org/model") == ()
    assert store.find("hf:org/model") == FormerPlan({**PLAN.pipelines, 3: UNSHARED}, PLAN.memories)


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    PlanStore(tmp_path / "cluster" / "plans.db").save("model", PLAN)
    assert stat.S_IMODE((tmp_path / "cluster" / "plans.db").stat().st_mode) == 0o600


def test_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plans.db").write_bytes(b"no database" * 100)
    with pytest.raises(ParallaxError, match="the last plan in"):
        PlanStore(tmp_path / "plans.db").find("model")
