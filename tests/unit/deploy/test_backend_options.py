"""``--backend-option``: checked against the options that a backend declares, and given to it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import UnknownName, UsageError
from parallax_core.base.ids import HEAD
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.config.worker import WorkerSettings
from parallax_core.contracts.transport import TransportPlan
from parallax_core.deploy.backend_options import collect_options, prepare_plugins, read_backend_options
from parallax_core.deploy.executors import WorkerLauncher
from parallax_core.deploy.stage_options import read_stage_options
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.plugins.host import PluginHost
from tests.support.node_services import equip
from tests.unit.plugins.site import Site

ABACUS = """
from dataclasses import dataclass
from typing import Annotated, Literal
from msgspec import Meta
from parallax_core.api import Availability, BackendSpec, Ref, SettingsSpec, hookimpl

@dataclass(frozen=True, kw_only=True)
class Options:
    beads: Annotated[int, Meta(description="The number of beads on a wire.", ge=1)] = 10
    wood: Literal["oak", "ash"] = "oak"

given = []

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="{name}", summary="s", probe=Ref("{module}:probe"), factory=Ref("{module}:probe"),
                        options=Ref("{module}:Options"))]

@hookimpl
def parallax_register_settings():
    return [SettingsSpec(name="{name}", summary="s", schema=Ref("{module}:Options"))]

@hookimpl
def parallax_configure(config):
    given.append(config.section(Options))

def probe():
    return Availability(ok=True, device="wood")
"""


@pytest.fixture
def abacus(site: Site) -> Site:
    site.install("abacus", ABACUS)
    site.install("bare", ABACUS.replace('options=Ref("{module}:Options")', ""))
    return site


def serve(*options: str, **given: Any) -> ServeSettings:
    return ServeSettings(**{"backend": "abacus", **given}, backend_option=options)


def options_of(settings: ServeSettings | WorkerSettings, config: Config | None = None) -> dict[str, object]:
    host = prepare_plugins(settings, config or Config())
    return host.read_options(host.backends().get("abacus"))


def test_option_has_its_type_and_overrides_the_file(abacus: Site) -> None:
    (abacus.folder / "parallax.toml").write_text('[abacus]\nbeads = 7\nwood = "ash"\n')
    assert options_of(serve("beads=12"), Config.load()) == {"beads": 12, "wood": "ash"}
    assert options_of(serve(), Config.load()) == {"beads": 7, "wood": "ash"}


def test_plugin_is_configured_once_with_the_option(abacus: Site) -> None:
    del abacus
    prepare_plugins(serve("wood=ash"), Config())
    import abacus_plugin  # type: ignore[import-not-found]

    assert abacus_plugin.given == [abacus_plugin.Options(wood="ash")]


def test_worker_takes_options_too(abacus: Site) -> None:
    del abacus
    settings = WorkerSettings(backend="abacus", backend_option=("beads=3", "wood=ash"))
    assert options_of(settings) == {"beads": 3, "wood": "ash"}


@pytest.mark.parametrize("option", ["abacus.beads=3", " abacus.beads = 3 "])
def test_option_of_one_of_several_backends_names_it(abacus: Site, option: str) -> None:
    del abacus
    assert options_of(serve(option, backend="bare, abacus", stages=2))["beads"] == 3


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (serve("beads"), "--backend-option 'beads' is not of the form NAME=VALUE", "weights=int8"),
        (serve("=3"), "is not of the form", ""),
        (serve("beads="), "is not of the form", ""),
        (serve("beads=3", backend=None), "--backend-option needs --backend", "add --backend NAME"),
        (serve("abacus.beads=3", backend=None), "--backend-option needs --backend", "add --backend abacus"),
        (
            serve("beads=3", backend="bare,abacus"),
            "does not say which backend it is for: bare or abacus",
            "bare.beads=3",
        ),
        (serve("torch.beads=3"), "is for the backend 'torch', and no stage uses it", "the stages use: abacus"),
        (serve("beads=3", backend="bare"), "the backend 'bare' has no options, and so no 'beads'", "leave"),
        (serve("baeds=3"), "the backend 'abacus' has no option 'baeds'", "did you mean 'beads'? abacus has"),
        (serve("x=3"), "has no option 'x'", "  beads (an integer of at least 1): The number of beads on a wire.\n"),
        (serve("beads=many"), "--backend-option beads is 'many': expected an integer of at least 1", "the default, 10"),
        (serve("wood=tin"), "--backend-option wood is 'tin': expected one of oak, ash", "correct it"),
        (serve("beads=3", listen="tcp://127.0.0.1:1"), "with --listen it opens none", "parallax worker --backend"),
    ],
)
def test_mistake_is_told_with_what_is_right(abacus: Site, settings: ServeSettings, message: str, hint: str) -> None:
    del abacus
    with pytest.raises(UsageError) as caught:
        prepare_plugins(settings, Config())
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_backend_that_nobody_offers_is_named(abacus: Site) -> None:
    del abacus
    with pytest.raises(UnknownName, match="no backend named 'abucus'"):
        prepare_plugins(serve("beads=3", backend="abucus"), Config())


def test_option_of_another_environment_is_left_to_its_workers(abacus: Site) -> None:
    del abacus
    settings = serve("far.anything=3", "abacus.beads=4", backend="abacus,far", python=(f"far={sys.executable}",))
    assert options_of(settings)["beads"] == 4
    assert read_backend_options(settings, PluginHost.discover()) == {"far": {"anything": "3"}, "abacus": {"beads": "4"}}


def test_workers_get_the_options_of_their_backend(abacus: Site) -> None:
    del abacus
    settings = serve("abacus.beads=4", "abacus.wood=ash", backend="abacus,bare", stages=2)
    stages = read_stage_options(settings, prepare_plugins(settings, Config()))
    assert stages.place == "with abacus on wood and bare on wood; each stage keeps its layers"
    registry = equip(NodeRegistry(InProcessTransport(TransportPlan(node=HEAD, listen="inprocess://head")), HEAD))
    launch: WorkerLauncher = stages._make_launcher(registry, Path("/x"), stages.backends)
    first, second = launch.make_command("worker/0/0"), launch.make_command("worker/0/1")
    given = [first[place + 1] for place, word in enumerate(first) if word == "--backend-option"]
    assert given == ["beads=4", "wood=ash"]
    assert "--backend-option" not in second


def test_options_that_differ_from_their_defaults_are_written_as_text(abacus: Site) -> None:
    beads = '    beads: Annotated[int, Meta(description="The number of beads on a wire.", ge=1)] = 10\n'
    abacus.install(
        "wired", ABACUS.replace(beads, f"{beads}    wires: tuple[int, ...] = ()\n    squeaks: bool = False\n")
    )
    settings = serve("wires=3,4", "squeaks=true", "beads=10", backend="wired")
    plugins = prepare_plugins(settings, Config())
    assert collect_options(plugins, ["wired", "bare"], {}) == {"wired": {"wires": "3,4", "squeaks": "true"}}
    found = collect_options(plugins, ["wired"], {"wired": {"wires": "5", "wood": "ash"}})
    assert found == {"wired": {"wires": "5", "squeaks": "true", "wood": "ash"}}
