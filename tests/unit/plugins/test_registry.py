"""What is said of a name that no plugin offers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from parallax_core.base.errors import UnknownName
from parallax_core.contracts.policy import PolicyKind
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import DISTRIBUTIONS, Registry

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_part_of_this_project_that_is_not_installed_says_how_to_install_it(name: str) -> None:
    kind, _, part = name.partition(" ")
    host = PluginHost([])
    registries: dict[str, Registry[Any]] = {
        "backend": host.backends(),
        "deployment": host.deployments(),
        "replica": host.replicas(),
        "source": host.sources(),
        "transport": host.transports(),
        **{kind: host.policies(kind) for kind in get_args(PolicyKind)},
    }
    registry = registries[kind]
    with pytest.raises(UnknownName, match=f"no {registry.kind.title} named '{part}'") as caught:
        registry.get(part)
    installs = (
        f"install it with `pip install {DISTRIBUTIONS[name]}`; no installed plugin offers a {registry.kind.title}."
    )
    assert caught.value.hint == installs


def test_name_that_nobody_offers_gets_what_there_is() -> None:
    with pytest.raises(UnknownName) as caught:
        PluginHost([]).backends().get("abacus")
    assert caught.value.hint == "no installed plugin offers a backend."


def test_distributions_to_install_are_those_of_this_project() -> None:
    files = ROOT.glob("plugins/*/pyproject.toml")
    names = {tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"] for path in files}
    assert set(DISTRIBUTIONS.values()) <= names
