"""Plugins as a user has them: distributions on ``sys.path``; what becomes of each."""

from __future__ import annotations

import pytest

from parallax_core.api import Content
from parallax_core.base.errors import BrokenPlugin, PluginConflict, UnknownName
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.cli.plugin_commands import examine_command, find_commands
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from tests.unit.plugins.site import Site

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

PARSER = """
from parallax_core.api import Content, ParserSpec, Ref, hookimpl

class Parser:
    def feed(self, text):
        return [Content("{module}: " + text)]

    def finish(self):
        return []

@hookimpl
def parallax_register_parsers():
    return [ParserSpec(name="loud", summary="s", factory=Ref("{module}:Parser"))]
"""


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
    site.install("bad", "raise RuntimeError('boom')")
    with pytest.raises(UnknownName, match="no backend named 'bad'") as caught:
        PluginHost.discover().backends().get("bad")
    assert caught.value.hint == (
        "plugin 'bad' (bad 1.0) is broken: RuntimeError: boom. "
        "pip install --force-reinstall bad, or report it to its authors."
    )


@pytest.mark.parametrize(
    ("requires", "remedy"),
    [
        ((), "module 'not_there' is missing: pip install not_there"),
        (
            ("py-not-there>=2", "pytest", "other; extra == 'x'"),
            "module 'not_there' is missing: pip install py-not-there",
        ),
    ],
)
def test_plugin_whose_dependency_is_missing_says_what_to_install(
    site: Site, requires: tuple[str, ...], remedy: str
) -> None:
    site.install("needy", "import not_there.part", requires=requires)
    found = record(PluginHost.discover(), "needy")
    assert (found.state, found.remedy) == ("broken", remedy)
    assert "No module named 'not_there'" in found.reason


def test_object_whose_dependency_is_missing_says_what_to_install(site: Site) -> None:
    site.install("lazy", GOOD.replace("{module}:missing", "lazy_backend:make"))
    (site.folder / "lazy_backend.py").write_text("import not_there")
    offer = PluginHost.discover().backends().get("lazy")
    with pytest.raises(BrokenPlugin, match="ModuleNotFoundError") as caught:
        offer.load(offer.spec.factory)
    assert caught.value.hint == "module 'not_there' is missing: pip install not_there"


def test_plugin_that_ends_the_process_is_broken(site: Site) -> None:
    site.install("bad", "raise SystemExit(3)")
    found = record(PluginHost.discover(), "bad")
    assert (found.state, found.reason) == ("broken", "it tried to end the process: SystemExit(3)")


def test_interrupt_during_an_import_says_whose_it_was(site: Site) -> None:
    site.install("stuck", "raise KeyboardInterrupt")
    done = site.run("plugins")
    assert (done.returncode, done.stdout) == (130, "")
    assert "interrupted while plugin 'stuck' (stuck 1.0) was imported" in done.stderr
    assert "PARALLAX_PLUGINS_DISABLED=stuck disables it" in done.stderr


def test_what_plugins_print_goes_to_standard_error(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    noise = "import os\nprint('one')\nos.write(1, b'two')\nos.system('echo three')\n"
    site.install("loud", noise + GOOD.replace("return", "print('four')\n    return"))
    assert "loud" in PluginHost.discover().backends().names()
    out, err = capfd.readouterr()
    assert out == ""
    assert all(word in err for word in ("one", "two", "three", "four"))


@pytest.mark.parametrize(
    ("api", "reason", "remedy"),
    [
        ("2", "built for plugin API 2; this is 1", "update parallax-core, or install a version of other made for"),
        ("0", "built for plugin API 0; this is 1", "install a version of other made for plugin API 1"),
        ("", "states no plugin API in entry-point group 'parallax.api'", "install a version of other that states it"),
    ],
)
def test_plugin_for_another_api_is_incompatible_and_not_imported(
    site: Site, api: str, reason: str, remedy: str
) -> None:
    site.install("other", "open('imported', 'w')", api=api)
    found = record(PluginHost.discover(), "other")
    assert found.state == "incompatible"
    assert found.reason.startswith(reason)
    assert found.remedy.startswith(remedy)
    assert not (site.folder / "imported").exists()


def test_each_plugin_of_a_distribution_states_its_own_api_and_a_command_any_of_them(site: Site) -> None:
    site.add("two", {"old_module": "", "new_module": "", "tool_module": ""})
    site.state(
        "two",
        {
            "parallax": "old = old_module\nnew = new_module",
            "parallax.api": "0 = old_module\n1 = new_module",
            "parallax.commands": "tool = tool_module:app",
        },
    )
    host = PluginHost.discover()
    assert [record(host, name).state for name in ("old", "new")] == ["incompatible", "loaded"]
    [command] = find_commands()["tool"]
    assert examine_command(command).state == "loaded"


@pytest.mark.parametrize("name", ["off", " off , else"])
def test_disabled_plugin_is_not_imported(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site.install("off", "open('imported', 'w')")
    monkeypatch.setenv("PARALLAX_PLUGINS_DISABLED", name)
    found = record(PluginHost.discover(), "off")
    assert (found.state, found.remedy) == ("disabled", "remove 'off' from PARALLAX_PLUGINS_DISABLED")
    assert not (site.folder / "imported").exists()


def test_file_disables_plugins_by_name_or_distribution(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("by_name", GOOD)
    site.install("by_dist", GOOD)
    site.install("by_variable", GOOD)
    (site.folder / "parallax.toml").write_text('[plugins]\ndisabled = ["by_name", "by-dist"]\n')
    monkeypatch.setenv("PARALLAX_PLUGINS_DISABLED", "by_variable")
    host = PluginHost.discover()
    assert {record(host, name).state for name in ("by_name", "by_dist", "by_variable")} == {"disabled"}
    place = f"[plugins] disabled in {site.folder / 'parallax.toml'}"
    assert record(host, "by_dist").remedy == f"remove 'by_dist' from {place}"
    with pytest.raises(UnknownName) as caught:
        host.backends().get("by_name")
    assert place in caught.value.hint


def test_mistyped_name_among_the_disabled_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site.install("pigeon", GOOD)
    monkeypatch.setenv("PARALLAX_PLUGINS_DISABLED", "pidgeon,entirely-different")
    assert record(PluginHost.discover(), "pigeon").state == "loaded"
    [said] = [message for message in caplog.messages if "PARALLAX_PLUGINS_DISABLED" in message]
    assert "names 'pidgeon', but there is no such plugin; did you mean 'pigeon'?" in said


def test_preferred_distribution_wins(site: Site) -> None:
    site.install("one", GOOD.replace('"{name}"', '"same"'))
    site.install("two", GOOD.replace('"{name}"', '"same"'))
    (site.folder / "parallax.toml").write_text('[plugins]\nprefer.backend.same = "Two"\n')
    registry = PluginHost.discover().backends()
    assert registry.get("same").plugin.distribution == "two"
    assert [offer.plugin.distribution for offer in registry.passed] == ["one"]


def test_preference_for_who_does_not_offer_it_changes_nothing(site: Site) -> None:
    site.install("one", GOOD)
    (site.folder / "parallax.toml").write_text('[plugins.prefer.backend]\none = "elsewhere"\n')
    assert PluginHost.discover().backends().get("one").plugin.distribution == "one"


def test_strict_names_every_plugin_that_is_not_loaded_but_by_choice(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("off", GOOD)
    monkeypatch.setenv("PARALLAX_PLUGINS_DISABLED", "off")
    PluginHost.discover().require_all()
    site.install("bad", "import not_there")
    site.install("late", GOOD.replace("return", "raise OSError('late') #"))
    site.install("old", GOOD, api="0")
    with pytest.raises(BrokenPlugin) as caught:
        PluginHost.discover().require_all()
    assert caught.value.message.startswith("3 of ")
    for said in ("'bad' (bad 1.0) is broken", "'late' (late 1.0) is broken: OSError: late", "'old' (old 1.0) is incom"):
        assert said in caught.value.message
    assert "pip install not_there" in caught.value.hint


def test_two_plugins_with_one_name_conflict_only_when_it_is_asked_for(site: Site) -> None:
    site.install("one", GOOD.replace("{name}", "same"))
    site.install("two", GOOD.replace("{name}", "same"))
    registry = PluginHost.discover().backends()
    with pytest.raises(PluginConflict, match=r"offered by both one 1.0 and two 1.0") as caught:
        registry.get("same")
    prefer = 'prefer.backend.same = "one" in [plugins] of parallax.toml'
    assert caught.value.hint == f"choose one, with {prefer}, or with PARALLAX_PLUGINS_DISABLED=two"


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


@pytest.mark.parametrize("how", ["wrapper", "hookwrapper"])
def test_plugin_that_wraps_a_hook_is_broken(site: Site, how: str) -> None:
    site.install("wrapping", GOOD.replace("@hookimpl", f"@hookimpl({how}=True)").replace("return", "yield"))
    found = record(PluginHost.discover(), "wrapping")
    assert found.state == "broken"
    assert "as a wrapper" in found.reason


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


def test_near_name_of_a_plugin_that_is_not_loaded_is_suggested_with_its_reason(site: Site) -> None:
    site.install("mlx_fast", "raise OSError('boom')")
    site.install("other", "import not_there")
    with pytest.raises(UnknownName) as caught:
        PluginHost.discover().backends().get("mlx-fast")
    assert caught.value.hint.startswith("did you mean 'mlx_fast'? plugin 'mlx_fast' (mlx_fast 1.0) is broken: OSError")
    assert "not_there" not in caught.value.hint


def test_many_plugins_that_are_not_loaded_are_named_without_their_reasons(site: Site) -> None:
    for name in ("one", "two", "three", "four"):
        site.install(name, "import not_there")
    with pytest.raises(UnknownName) as caught:
        PluginHost.discover().backends().get("something")
    assert "might offer it: four, one, three, two. `parallax plugins` shows why" in caught.value.hint
    assert "not_there" not in caught.value.hint


def test_reason_of_several_lines_becomes_one(site: Site) -> None:
    site.install("bad", "raise OSError('one\\n  two')")
    assert record(PluginHost.discover(), "bad").reason == "OSError: one two"


def test_built_in_sources_come_through_the_same_door() -> None:
    host = PluginHost.discover()
    assert record(host, "core").distribution == "parallax-core"
    assert "file" in host.sources().names()


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
    transports = host.transports()
    pigeon, local = transports.get("pigeon"), transports.get("inprocess")
    assert pigeon.load(pigeon.spec.factory)("a test") == "a transport for a test"  # type: ignore[arg-type, comparison-overlap]
    assert local.load(local.spec.factory) is InProcessTransport
    with pytest.raises(UnknownName, match="no transport named 'pigeons'"):
        transports.get("pigeons")


def test_parser_of_a_plugin_is_found_by_name_and_made_for_each_answer(site: Site) -> None:
    site.install("one", PARSER)
    offer = PluginHost.discover().parsers().get("loud")
    make = offer.load(offer.spec.factory)
    assert make() is not make()
    assert make().feed("hello") == [Content("one_plugin: hello")]
    with pytest.raises(UnknownName, match="no output parser named 'lout'") as caught:
        PluginHost.discover().parsers().get("lout")
    assert "did you mean 'loud'?" in caught.value.hint


def test_parsers_of_one_name_conflict_until_one_is_preferred(site: Site) -> None:
    site.install("one", PARSER)
    site.install("two", PARSER)
    with pytest.raises(PluginConflict, match=r"output parser 'loud' is offered by both one 1.0 and two 1.0") as caught:
        PluginHost.discover().parsers().get("loud")
    assert 'prefer.parser.loud = "one"' in caught.value.hint
    (site.folder / "parallax.toml").write_text('[plugins]\nprefer.parser.loud = "two"\n')
    assert PluginHost.discover().parsers().get("loud").plugin.origin == "two 1.0"


def test_plugin_that_offers_what_is_no_spec_is_broken(site: Site) -> None:
    site.install("wrong", TRANSPORT.replace("TransportSpec(", "dict("))
    host = PluginHost.discover()
    assert "wrong" not in host.transports().names()
    assert record(host, "wrong").state == "broken"
    assert "parallax_register_transports returned" in record(host, "wrong").reason
