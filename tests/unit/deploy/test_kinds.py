"""Which kind of deployment plans a server, and what is made of its answer."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from parallax_cluster.deploy.code_admission import selects as selects_joined
from parallax_core.api import DeploymentSpec, ParallaxError, Ref, ServerRequest, SettingsSpec, WantedNodes, hookimpl
from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName, UsageError
from parallax_core.builtin import plugin as core
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.fixed import FixedPlan
from parallax_core.deploy.kinds import ServePlan, read_serve_plan
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

LISTEN = "tcp://127.0.0.1:0"


@dataclass(frozen=True)
class MineSettings:
    """The section of a plugin."""

    stages: int = 3


@asynccontextmanager
async def launch(nodes: WantedNodes) -> AsyncIterator[None]:
    del nodes
    yield


def plan_mine(request: ServerRequest) -> Any:
    stages = request.read_section(MineSettings).stages
    return request.plan(place="in my attic", launch=launch, listen=LISTEN, stages=stages)


def plan_nothing(request: ServerRequest) -> Any:
    del request


def plan_fault(request: ServerRequest) -> Any:
    raise RuntimeError(f"no attic for {request.settings.model}")


def plan_error(request: ServerRequest) -> Any:
    raise ParallaxError("the attic is full", "tidy it up")


def plan_unknown(request: ServerRequest) -> Any:
    return request.plan(stage=2)


def plan_silent(request: ServerRequest) -> Any:
    return request.plan(launch=launch)


def select_two(settings: Any) -> bool:
    return bool(settings.stages == 2)


def select_fault(settings: Any) -> bool:
    raise RuntimeError(f"no attic has {settings.stages}")


def offer(name: str, plan: str = "plan_mine", selects: str = "") -> DeploymentSpec:
    return DeploymentSpec(
        name=name,
        summary="machines in an attic",
        plan=Ref(f"{__name__}:{plan}") if plan else None,
        selects=Ref(f"{__name__}:{selects}") if selects else None,
    )


def read(*specs: DeploymentSpec, **given: Any) -> ServePlan:
    """Return the plan of a server where a plugin offers kinds beside core's."""
    plugin = types.ModuleType("attic")
    plugin.parallax_register_deployments = hookimpl(lambda: specs)  # type: ignore[attr-defined]
    section = SettingsSpec(name="mine", summary="an attic", schema=Ref(f"{__name__}:MineSettings"))
    plugin.parallax_register_settings = hookimpl(lambda: [section])  # type: ignore[attr-defined]
    records = [
        PluginRecord(name=name, distribution=f"parallax-{name}", version="1", module=name, state="loaded")
        for name in ("core", "attic")
    ]
    host = PluginHost(list(zip(records, (core, plugin), strict=True)))
    return read_serve_plan(ServeSettings(model="org/model", backend="attic", **{"listen": LISTEN, **given}), host)


@pytest.fixture(autouse=True)
def zmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any name of a transport do: these hosts have none between processes."""
    monkeypatch.setattr("parallax_core.deploy.stage_options.choose_transport_name", lambda *_: "inprocess")


def test_stages_that_a_user_chooses_are_the_kind_of_core() -> None:
    plan = read(offer("mine"), offer("other", selects="select_two"))
    assert isinstance(plan, FixedPlan)
    assert (plan.model, plan.place, plan.added.launch) == ("org/model", "on machines that join", None)


@pytest.mark.parametrize("given", [{"deployment": "mine"}, {"stages": 2}])
def test_kind_is_the_one_that_is_named_or_that_selects_the_settings(given: dict[str, Any]) -> None:
    plan = read(offer("mine", selects="select_two"), **given)
    assert isinstance(plan, FixedPlan)
    assert (plan.place, plan.settings.stages, plan.num_nodes) == ("in my attic", 3, 3)
    assert plan.added.launch is launch


def test_kinds_that_select_the_same_settings_are_told() -> None:
    specs = [offer(name, selects="select_two") for name in ("mine", "yours")]
    with pytest.raises(PluginConflict, match=r"'mine' \(parallax-attic 1\) and 'yours'") as caught:
        read(*specs, stages=2)
    assert caught.value.hint == "name one: --set deployment=NAME"
    assert read(*specs, stages=2, deployment="yours").place == "in my attic"


@pytest.mark.parametrize(
    ("spec", "given", "error", "told"),
    [
        (offer("mine"), {"deployment": "hers"}, UnknownName, "no deployment named 'hers'"),
        (offer("mine"), {"find": ("plx1x",)}, UnknownName, "no deployment named 'found'"),
        (
            offer("mine"),
            {"find": ("plx1x",), "deployment": "mine"},
            UsageError,
            "--find and --set deployment contradict",
        ),
        (offer("mine", ""), {"deployment": "mine"}, UsageError, "the deployment 'mine' is for workers"),
        (offer("mine", "plan_nothing"), {"deployment": "mine"}, BrokenPlugin, "gave None as the plan of a server"),
        (offer("mine", "plan_fault"), {"deployment": "mine"}, BrokenPlugin, "RuntimeError: no attic for org/model"),
        (offer("mine", "plan_missing"), {"deployment": "mine"}, BrokenPlugin, "'mine' of parallax-attic 1 cannot be"),
        (offer("mine", "plan_error"), {"deployment": "mine"}, ParallaxError, "the attic is full"),
        (offer("mine", "plan_unknown"), {"deployment": "mine"}, UsageError, r"\[serve\].*'stage'"),
        (offer("mine", "plan_silent"), {"deployment": "mine", "listen": None}, UsageError, "a launcher starts nodes"),
        (offer("mine", selects="select_fault"), {}, BrokenPlugin, "RuntimeError: no attic has 1"),
    ],
)
def test_kind_that_cannot_plan_the_server_is_told(
    spec: DeploymentSpec, given: dict[str, Any], error: type[ParallaxError], told: str
) -> None:
    with pytest.raises(error, match=told):
        read(spec, **given)


@pytest.mark.parametrize(
    ("given", "is_selected"),
    [
        ({}, False),
        ({"layers": "0-2"}, False),
        ({"stages": 2}, True),
        ({"listen": "x"}, True),
        ({"relay": True}, True),
    ],
)
def test_machines_may_join_where_stages_are_several_or_elsewhere(given: dict[str, Any], is_selected: bool) -> None:
    assert selects_joined(ServeSettings(**given)) == is_selected
