from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parallax_core.api import BackendPython
from parallax_core.base.errors import UsageError
from parallax_core.config.serve import ServeSettings
from parallax_core.deploy.interpreter import check_python, find_own_pythons
from parallax_core.plugins.host import PluginHost
from tests.unit.plugins.site import Site

BACKENDS = """
from parallax_core.api import Availability, BackendPython, BackendSpec, Ref, hookimpl

def probe_here():
    return Availability(ok=True)

def probe_there():
    return Availability(ok=False, reason="it lives elsewhere")

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name=name, summary="s", probe=Ref("{module}:probe_" + name), factory=Ref("{module}:probe_here"))
            for name in ("here", "there")]

@hookimpl
def parallax_find_python(backend):
    return ANSWER
"""


def install(site: Site, answer: BackendPython) -> None:
    site.install("abacus", BACKENDS.replace("ANSWER", repr(answer)))


def find(**given: object) -> dict[str, str]:
    settings = ServeSettings(backend="here,there", **given)  # type: ignore[arg-type]
    return find_own_pythons(settings, PluginHost.discover(), ["here", "there"])


def test_plugin_names_the_python_of_a_backend_that_cannot_run_here(site: Site) -> None:
    install(site, BackendPython(path=sys.executable))
    assert find() == {"there": sys.executable}
    assert find(python=("there=/other/python",)) == {}
    assert find(listen="tcp://127.0.0.1:0") == {}


def test_python_with_a_fault_is_refused_with_the_remedy(site: Site) -> None:
    install(site, BackendPython(path=sys.executable, fault="it is too old", remedy="make it anew"))
    with pytest.raises(UsageError, match="it is too old") as refused:
        find()
    assert refused.value.hint == "make it anew"


def test_python_that_cannot_be_started_is_refused(site: Site) -> None:
    install(site, BackendPython(path="/nowhere/python"))
    with pytest.raises(UsageError, match="the backend 'there' cannot run with /nowhere/python"):
        find()


def test_interpreter_with_other_messages_is_refused_with_both_versions(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 9.9 99\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match=r"it has parallax-core 9\.9 with wire version 99, and this one") as no:
        check_python(str(python), "abacus")
    assert "-m pip install parallax-core==" in no.value.hint
