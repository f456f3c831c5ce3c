"""The kinds of workers that plugins offer, as processes."""

from __future__ import annotations

import pytest

from tests.unit.plugins.site import Site

KINDS = """
from parallax_core.api import DeploymentSpec, Ref, hookimpl

@hookimpl
def parallax_register_deployments():
    return [
        DeploymentSpec(name="own", summary="s", work=Ref("{module}:work")),
        DeploymentSpec(name="found", summary="s", work=Ref("{module}:find")),
        DeploymentSpec(name="usual", summary="s"),
    ]

def work(request):
    print("own work for", request.settings.connect)

def find(request):
    print("found work for", request.settings.model, request.settings.layers)
"""
NOWHERE = "ipc:///none/such/place"


@pytest.fixture
def kinds(site: Site) -> Site:
    site.install("kinds", KINDS)
    return site


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--connect", NOWHERE, "--set", "deployment=own"), f"own work for {NOWHERE}\n"),
        (("org/model", "--layers", "0-4", "--connect", NOWHERE), "found work for org/model 0-4\n"),
        (("org/model", "--connect", NOWHERE, "--set", "deployment=own"), f"own work for {NOWHERE}\n"),
    ],
)
def test_worker_of_a_kind_is_run_by_it(kinds: Site, words: tuple[str, ...], said: str) -> None:
    done = kinds.run("worker", *words)
    assert (done.returncode, done.stdout) == (0, said), done.stderr


@pytest.mark.parametrize("words", [(), ("--set", "deployment=usual")])
def test_worker_without_a_kind_or_of_one_that_runs_none_is_the_usual_one(kinds: Site, words: tuple[str, ...]) -> None:
    done = kinds.run("worker", "--connect", NOWHERE, *words)  # other plugins are disabled, and so all backends
    assert (done.returncode, done.stdout) == (1, "")
    assert "`parallax doctor` says what is missing" in done.stderr


SLOW = """
import time
from parallax_core.api import hookimpl

@hookimpl
def parallax_register_backends():
    time.sleep(30)
    return []
"""


def test_supervised_worker_ends_with_who_started_it(site: Site) -> None:
    site.install("slow", SLOW)  # so that it would run on
    done = site.run("worker", "--connect", NOWHERE, "--supervised")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_kind_that_nobody_offers_is_named(kinds: Site) -> None:
    done = kinds.run("worker", "--connect", NOWHERE, "--set", "deployment=none-such")
    assert done.returncode != 0
    assert "'none-such'" in done.stderr
