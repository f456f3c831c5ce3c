"""Plugins as a user has them: distributions on ``sys.path``, written here as folders with metadata."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.choice import choose_transport
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

GOOD = """
from parallax_core.api import BackendSpec, Ref, hookimpl

@hookimpl
def parallax_register_backends():
    return [BackendSpec(name="{name}", summary="s", probe=Ref("{module}:probe"), factory=Ref("{module}:missing"))]
"""

POLICY = """
from parallax_core.api import PolicySpec, Ref, hookimpl

@hookimpl
def parallax_register_policies():
    return [PolicySpec(name="{name}", kind="{kind}", summary="s", factory=Ref("{module}:missing"))]
"""

TRANSPORT = """
from parallax_core.api import Ref, TransportSpec, hookimpl

def make(plan):
    return "a transport for " + plan

@hookimpl
def parallax_register_transports():
    return [TransportSpec(name="{name}", summary="s", factory=Ref("{module}:make"))]
"""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(self, name: str, code: str, api: str = "1") -> None:
        module = f"{name}_plugin"
        (self._folder / f"{module}.py").write_text(code.format(name=name, module=module))
        info = self._folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = [f"[parallax]\n{name} = {module}\n", f"[parallax.api]\n{api} = {module}\n" if api else ""]
        (info / "entry_points.txt").write_text("".join(lines))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for module in set(sys.modules) - before:
        if module.endswith("_plugin"):
            del sys.modules[module]


def record(host: PluginHost, name: str) -> PluginRecord:
    return next(record for record in host.records if record.name == name)


def test_good_plugin_is_loaded_and_offers_its_backend(site: Site) -> None:
    site.install("good", GOOD)
    host = PluginHost.discover()
    assert record(host, "good").state == "loaded"
    assert host.backends().get("good").plugin.origin == "good 1.0"


def test_plugin_that_raises_on_import_is_broken_and_harms_nobody(site: Site) -> None:
    site.install("bad", "raise RuntimeError('boom')")
    site.install("good", GOOD)
    host = PluginHost.discover()
    assert record(host, "bad").state == "broken"
    assert "RuntimeError: boom" in record(host, "bad").reason
    assert "good" in host.backends().names()


def test_broken_plugin_is_named_when_something_unknown_is_asked_for(site: Site) -> None:
    site.install("bad", "import a_module_that_is_not_there")
    with pytest.raises(UnknownName, match="no backend named 'bad'") as caught:
        PluginHost.discover().backends().get("bad")
    assert "a_module_that_is_not_there" in caught.value.hint


@pytest.mark.parametrize(("api", "reason"), [("2", "built for plugin API 2; this is 1"), ("", "states no plugin API")])
def test_plugin_for_another_api_is_incompatible_and_not_imported(site: Site, api: str, reason: str) -> None:
    site.install("other", "raise SystemExit('imported')", api=api)
    found = record(PluginHost.discover(), "other")
    assert found.state == "incompatible"
    assert reason in found.reason


@pytest.mark.parametrize("name", ["off", " off , else"])
def test_disabled_plugin_is_not_imported(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site.install("off", "raise SystemExit('imported')")
    monkeypatch.setenv("PARALLAX_PLUGINS_DISABLED", name)
    assert record(PluginHost.discover(), "off").state == "disabled"


def test_two_plugins_with_one_name_conflict_only_when_it_is_asked_for(site: Site) -> None:
    site.install("one", GOOD.replace("{name}", "same"))
    site.install("two", GOOD.replace("{name}", "same"))
    registry = PluginHost.discover().backends()
    with pytest.raises(PluginConflict, match=r"offered by both one 1.0 and two 1.0") as caught:
        registry.get("same")
    assert "PARALLAX_PLUGINS_DISABLED=two" in caught.value.hint


def test_plugin_that_raises_in_a_hook_is_broken_from_then_on(site: Site) -> None:
    site.install("late", GOOD.replace("return", "raise OSError('late') #"))
    host = PluginHost.discover()
    assert record(host, "late").state == "loaded"
    host.backends()
    assert record(host, "late").state == "broken"


def test_plugin_with_an_unknown_hook_is_broken(site: Site) -> None:
    site.install("newer", GOOD + "\n@hookimpl\ndef parallax_from_the_future():\n    pass\n")
    found = record(PluginHost.discover(), "newer")
    assert found.state == "broken"
    assert "parallax_from_the_future" in found.reason


def test_plugin_that_asks_a_hook_for_too_much_is_broken(site: Site) -> None:
    site.install("greedy", GOOD.replace("backends()", "backends(machine)"))
    assert record(PluginHost.discover(), "greedy").state == "broken"


def test_spec_whose_object_is_missing_names_its_plugin(site: Site) -> None:
    site.install("hollow", GOOD)
    offer = PluginHost.discover().backends().get("hollow")
    with pytest.raises(BrokenPlugin, match=r"'hollow' of hollow 1.0 cannot be loaded: AttributeError"):
        offer.load(offer.spec.factory)


def test_near_name_is_suggested(site: Site) -> None:
    site.install("good", GOOD)
    with pytest.raises(UnknownName) as caught:
        PluginHost.discover().backends().get("goood")
    assert "did you mean 'good'?" in caught.value.hint


def test_built_in_sources_come_through_the_same_door() -> None:
    host = PluginHost.discover()
    assert record(host, "core").distribution == "parallax-core"
    assert {"file", "hf"} <= set(host.sources().names())


def test_policies_of_different_kinds_may_share_a_name(site: Site) -> None:
    for kind in ("batching", "routing"):
        site.install(f"by_{kind}", POLICY.replace("{name}", "same").replace("{kind}", kind))
    host = PluginHost.discover()
    assert host.policies("batching").get("same").plugin.origin == "by_batching 1.0"
    assert host.policies("routing").get("same").plugin.origin == "by_routing 1.0"
    with pytest.raises(UnknownName, match="no preemption policy named 'same'"):
        host.policies("preemption").get("same")


def test_policies_of_one_kind_and_name_conflict(site: Site) -> None:
    for name in ("one", "two"):
        site.install(name, POLICY.replace("{name}", "same").replace("{kind}", "routing"))
    with pytest.raises(PluginConflict, match=r"routing policy 'same' is offered by both one 1.0 and two 1.0"):
        PluginHost.discover().policies("routing").get("same")


def test_transport_of_a_plugin_is_chosen_by_name(site: Site) -> None:
    site.install("pigeon", TRANSPORT)
    host = PluginHost.discover()
    assert choose_transport(host, "pigeon")("a test") == "a transport for a test"  # type: ignore[arg-type, comparison-overlap]
    assert choose_transport(host) is InProcessTransport
    with pytest.raises(UnknownName, match="no transport named 'pigeons'"):
        choose_transport(host, "pigeons")


def test_plugin_that_offers_what_is_no_spec_is_broken(site: Site) -> None:
    site.install("wrong", TRANSPORT.replace("TransportSpec(", "dict("))
    host = PluginHost.discover()
    assert "wrong" not in host.transports().names()
    assert record(host, "wrong").state == "broken"
    assert "parallax_register_transports returned" in record(host, "wrong").reason
