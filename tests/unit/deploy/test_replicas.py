from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, cast

import pytest

from parallax_core.api import (
    Availability,
    BackendSpec,
    Ref,
    ReplicaSpec,
    TokenEngine,
    UnknownName,
    UsageError,
    hookimpl,
)
from parallax_core.base.errors import BrokenPlugin
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.replica import ReplicaPlan
from parallax_core.deploy.replicas import OF_STAGES, ReplicaKind, find_kind
from parallax_core.deploy.stage_options import choose_transport_name, read_parallel
from parallax_core.models.backends import find_backends
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

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


def make_replica(plan: object) -> TokenEngine:
    raise ZeroDivisionError(plan)


KIND = ReplicaSpec(name="engine", summary="s", make=Ref(f"{__name__}:make_replica"))


def make_spec(name: str) -> BackendSpec:
    return BackendSpec(
        name=name,
        summary="s",
        probe=Ref(f"{__name__}:probe"),
        factory=Ref(f"{__name__}:probe"),
        opens=OPENS.get(name, ("engine",)),
        rank=len(name),
    )


def make_host(*names: str, offers: Sequence[ReplicaSpec] = (KIND,)) -> PluginHost:
    module: Any = types.ModuleType("here")
    specs = [make_spec(name) for name in names]

    @hookimpl
    def parallax_register_backends() -> list[BackendSpec]:
        return specs

    @hookimpl
    def parallax_register_replicas() -> Sequence[ReplicaSpec]:
        return offers

    module.parallax_register_backends = parallax_register_backends
    module.parallax_register_replicas = parallax_register_replicas
    host = PluginHost([])
    host.add(PluginRecord(name="here", distribution="here", version="1", module="here", state="loaded"), module)
    return host


def find(backend: str | None = None, **given: Any) -> ReplicaKind | None:
    settings = ServeSettings(backend=backend, **given)
    return find_kind(settings, read_parallel(settings), make_host(*OPENS))


def find_name(**given: Any) -> str:
    kind = find(**given)
    return kind.backend if kind is not None else ""


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
    assert find_name(**given) == name


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
    assert find(backend="stages", **GIVEN[name]) is None


def test_engine_runs_in_a_process_of_its_own() -> None:
    settings = ServeSettings()
    assert choose_transport_name(settings, read_parallel(settings), find("engines")) == "zmq"
    with pytest.raises(UsageError, match="the engine of 'engines' runs in a process of its own"):
        choose_transport_name(ServeSettings(transport="inprocess"), read_parallel(settings), find("engines"))


def test_backend_for_whole_models_is_not_chosen_for_stages() -> None:
    host = make_host(*OPENS)
    assert [offer.spec.name for offer in find_backends(host, None, "stage")] == ["rather-stages", "stages", "both"]
    assert "engines" in [offer.spec.name for offer in find_backends(host, None)]


def test_kind_that_nobody_offers_names_what_to_install() -> None:
    settings = ServeSettings(backend="engines")
    with pytest.raises(UnknownName, match="no kind of replicas named 'engine'") as error:
        find_kind(settings, read_parallel(settings), make_host(*OPENS, offers=()))
    assert "pip install parallax-engines" in error.value.hint


def test_kind_that_fails_is_broken_and_named() -> None:
    kind = find("engines")
    assert kind is not None
    with pytest.raises(BrokenPlugin, match="the kind of replicas 'engine' of here 1 failed: ZeroDivisionError"):
        kind.make(cast("ReplicaPlan", None))
