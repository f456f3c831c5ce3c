from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Availability, BackendSpec, EnginePlan, Ref, TokenEngine, Unsupported, hookimpl
from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.engines import OF_STAGES, find_engine_backend
from parallax_core.deploy.stage_options import choose_transport_name, read_parallel
from parallax_core.models.backends import find_backends
from parallax_core.models.engines import open_engine
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.stage_engine import make_toy_engine
from parallax_core.testing.toy import Toy

OPENS: dict[str, Any] = {
    "stages": ("stage",),
    "engines": ("engine",),
    "both": ("engine", "stage"),
    "rather-stages": ("stage", "engine"),
}
GIVEN: dict[str, dict[str, Any]] = {
    "batching": {"batching": "x"},
    "scheduling": {"scheduling": "x"},
    "preemption": {"preemption": "x"},
    "min_peer_timeout": {"min_peer_timeout": 0.5},
    "spares": {"spares": 1},
}


def probe() -> Availability:
    return Availability(ok=True)


class EngineOpener:
    """Opens engines of a toy."""

    plans: list[EnginePlan] = []  # noqa: RUF012 -- one for the test

    def open_engine(self, plan: EnginePlan) -> TokenEngine:
        self.plans.append(plan)
        return make_toy_engine(Toy())


class StageOpener:
    """Opens no engine."""

    def open_stage(self, plan: object) -> object:
        return plan


def make_spec(name: str, factory: str = "EngineOpener") -> BackendSpec:
    return BackendSpec(
        name=name,
        summary="s",
        probe=Ref(f"{__name__}:probe"),
        factory=Ref(f"{__name__}:{factory}"),
        opens=OPENS.get(name, ("engine",)),
        rank=len(name),
    )


def make_host(*names: str) -> PluginHost:
    module: Any = types.ModuleType("here")
    specs = [make_spec(name) for name in names]

    @hookimpl
    def parallax_register_backends() -> list[BackendSpec]:
        return specs

    module.parallax_register_backends = parallax_register_backends
    host = PluginHost([])
    host.add(PluginRecord(name="here", distribution="here", version="1", module="here", state="loaded"), module)
    return host


def find(**given: Any) -> str:
    settings = ServeSettings(**given)
    return find_engine_backend(settings, read_parallel(settings), make_host(*OPENS))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, ""),
        ({"backend": "stages"}, ""),
        ({"backend": "engines"}, "engines"),
        ({"backend": "both"}, "both"),
        ({"backend": "both", "data_parallel": 2}, "both"),
        ({"backend": "rather-stages"}, ""),
        ({"backend": "both", "stages": 2}, ""),
        ({"backend": "both", "layers": "0-30"}, ""),
        ({"backend": "both,stages", "stages": 2}, ""),
        ({"backend": "not-installed-here"}, ""),
    ],
)
def test_engine_serves_what_is_not_split_if_its_backend_is_named(given: dict[str, Any], name: str) -> None:
    assert find(**given) == name


@pytest.mark.parametrize("given", [{"stages": 2}, {"layers": "0-30"}])
def test_backend_for_whole_models_cannot_split_one(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="the backend 'engines' serves whole models only"):
        find(backend="engines", **given)


def test_engine_on_other_machines_is_refused() -> None:
    with pytest.raises(UsageError, match="--listen waits for nodes of others"):
        find(backend="engines", listen="tcp://127.0.0.1:0")


@pytest.mark.parametrize("name", OF_STAGES)
def test_setting_that_concerns_stages_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match=rf"\[serve\] {name} is for pipelines of stages"):
        find(backend="engines", **GIVEN[name])
    assert find(backend="stages", **GIVEN[name]) == ""


def test_engine_runs_in_a_process_of_its_own() -> None:
    settings = ServeSettings()
    assert choose_transport_name(settings, read_parallel(settings), "engines") == "zmq"
    with pytest.raises(UsageError, match="the engine of 'engines' runs in a process of its own"):
        choose_transport_name(ServeSettings(transport="inprocess"), read_parallel(settings), "engines")


def test_backend_for_whole_models_is_not_chosen_for_stages() -> None:
    host = make_host(*OPENS)
    assert [offer.spec.name for offer in find_backends(host, None, "stage")] == ["rather-stages", "stages", "both"]
    assert "engines" in [offer.spec.name for offer in find_backends(host, None)]


def test_engine_is_opened_with_the_model_and_its_options(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(8))
    [offer] = make_host("engines").backends().offers
    EngineOpener.plans.clear()
    engine = open_engine(make_host(), offer, EnginePlan(model=tmp_path, options={"a": 1}))
    assert engine.health().state == "starting"
    assert [(plan.model, plan.options) for plan in EngineOpener.plans] == [(tmp_path, {"a": 1})]


def test_backend_that_only_says_it_opens_engines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    [offer] = make_host("engines").backends().offers
    offer = type(offer)(make_spec("engines", "StageOpener"), offer.plugin)
    with pytest.raises(Unsupported, match="and has no open_engine"):
        open_engine(make_host(), offer, EnginePlan(model=tmp_path))
