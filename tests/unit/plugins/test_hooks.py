"""Each hook that is called: by what, with what, and what a plugin that misbehaves in it does to others."""

from __future__ import annotations

import logging
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest

from parallax_core.api import EngineReady, Event, Finding, Ref, Settings, SettingsSpec, hookimpl
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.config.config import Config
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost

READY = EngineReady(at=0.0, model="m", load_s=1.0)


def offer_nothing() -> list[object]:
    return []


def make_plugin(name: str, **hooks: Callable[..., Any]) -> tuple[PluginRecord, Any]:
    """Return a plugin with these hooks, without their prefix."""
    record = PluginRecord(name=name, distribution=f"dist-{name}", version="1", module=name, state="loaded")
    module = types.SimpleNamespace(**{f"parallax_{hook}": hookimpl(function) for hook, function in hooks.items()})
    return record, module


def make_host(**plugins: dict[str, Callable[..., Any]]) -> PluginHost:
    return PluginHost(make_plugin(name, **hooks) for name, hooks in plugins.items())


def state_of(host: PluginHost, name: str) -> tuple[str, str]:
    return next((record.state, record.reason) for record in host.records if record.name == name)


def explode(*_: object) -> Any:
    raise RuntimeError("boom")


def test_configure_reaches_every_plugin_once_and_later_ones_when_they_come() -> None:
    told: list[str] = []

    def tell(name: str) -> dict[str, Callable[..., Any]]:
        return {"configure": lambda config: told.append(name)}

    host = make_host(one=tell("one"), bad={"configure": lambda config: explode()}, two=tell("two"))
    assert told == []
    host.configure(Config())
    assert told == ["one", "two"]
    assert state_of(host, "bad") == ("broken", "RuntimeError: boom")
    host.add(*make_plugin("three", **tell("three")))
    assert told == ["one", "two", "three"]


def test_plugin_that_refuses_its_settings_says_so_in_its_own_words() -> None:
    def refuse(config: Settings) -> None:
        raise ParallaxError("'fast' needs a GPU", "set it to false")

    host = make_host(picky={"configure": refuse})
    host.configure(Config())
    [record] = host.records
    assert (record.reason, record.remedy) == ("'fast' needs a GPU", "set it to false")


def test_plugin_that_is_broken_offers_nothing_any_more() -> None:
    spec = SettingsSpec(name="mine", summary="s", schema=Ref("nowhere:Mine"))
    host = make_host(bad={"register_settings": lambda: [spec], "configure": lambda config: explode()})
    assert host.settings().names() == ["mine"]
    host.configure(Config())
    assert host.settings().names() == []
    with pytest.raises(UnknownName, match="no section named 'mine'") as caught:
        host.settings().get("mine")
    assert "RuntimeError: boom" in caught.value.hint


def test_registration_hooks_are_called_once() -> None:
    calls: list[str] = []

    def offer() -> list[object]:
        calls.append("policies")
        return []

    host = make_host(one={"register_policies": offer})
    host.policies("batching")
    host.policies("routing")
    host.list_registries()
    assert len(calls) == 1


def test_select_backend_stops_at_the_first_answer_and_gets_what_it_asks_for() -> None:
    seen: list[object] = []

    def choose(available: tuple[str, ...]) -> str:
        seen.append(available)
        return available[-1]

    host = make_host(
        never={"select_backend": lambda: seen.append("never")},
        second={"select_backend": choose},
        first={"select_backend": lambda model_config: seen.append(model_config["model_type"])},
    )
    assert host.select_backend({"model_type": "toy"}, ["a", "b"]) == "b"
    assert seen == ["toy", ("a", "b")]
    asking = make_host(one={"select_backend": lambda with_blocks: with_blocks[0]})
    assert asking.select_backend({}, ["a", "b"], ["b"]) == "b"


def test_select_backend_goes_on_after_nonsense_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    host = make_host(
        good={"select_backend": lambda: "a"},
        wrong={"select_backend": lambda: "nowhere"},
        bad={"select_backend": explode},
    )
    assert host.select_backend({}, ["a"]) == "a"
    assert "returned 'nowhere', which is not one of ['a']" in state_of(host, "wrong")[1]
    assert state_of(host, "bad")[0] == "broken"
    assert "plugin 'wrong' (dist-wrong 1) is broken" in caplog.text
    assert make_host(shy={"select_backend": lambda: None}).select_backend({}, ["a"]) is None


class Surface:
    """What a server gives to a plugin, of which routes are kept."""

    def __init__(self) -> None:
        self.routers: list[object] = []

    engine: Any = None

    def add_router(self, router: object) -> None:
        self.routers.append(router)

    def write_errors(self, path: str, write: Any) -> None:
        raise NotImplementedError

    def rewrite_bodies(self, path: str, rewrite: Any) -> None:
        raise NotImplementedError

    async def read(self, request: Any, reader: Any, kind: Any) -> Any:
        raise NotImplementedError

    async def forward(self, request: Any, path: str, body: bytes | None = None) -> Any:
        raise NotImplementedError

    def add_page(self, path: str, folder: Any) -> None:
        raise NotImplementedError

    def authenticate_by(self, authenticator: Any) -> None:
        raise NotImplementedError

    def status(self) -> Any:
        raise NotImplementedError


def test_extend_server_gives_each_plugin_a_surface_of_its_own() -> None:
    def half(server: Surface) -> None:
        server.add_router("half")
        explode()

    host = make_host(one={"extend_server": lambda server: server.add_router("r")}, bad={"extend_server": half})
    assert [(record.name, surface.routers) for record, surface in host.extend_server(Surface)] == [("one", ["r"])]
    assert state_of(host, "bad")[0] == "broken"


def test_observers_are_called_with_what_they_ask_for() -> None:
    seen: list[object] = []

    def see(event: Event) -> None:
        seen.append(event)

    host = make_host(one={"observe": see}, none={"observe": lambda: seen.append("nothing")}, other={})
    for record, observe in host.observers():
        seen.append(record.name)
        observe(READY)
    assert seen == ["one", READY, "none", "nothing"]


def test_diagnose_tells_of_the_plugin_and_leaves_a_broken_one_out() -> None:
    finding = Finding(topic="t", status="ok", message="m")
    host = make_host(bad={"diagnose": explode}, good={"diagnose": lambda: [finding]})
    assert [(record.name, found) for record, found in host.diagnose()] == [("good", finding)]
    assert state_of(host, "bad")[0] == "broken"


def test_diagnose_is_given_the_settings_even_where_none_are_configured() -> None:
    given: list[Settings] = []

    def diagnose(config: Settings) -> list[Finding]:
        given.append(config)
        return []

    host = make_host(one={"diagnose": diagnose})
    assert list(host.diagnose()) == []
    with pytest.raises(UnknownName):
        given[0].section(int)


def test_diagnose_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallax_core.plugins.host.DIAGNOSE_S", 0.05)
    end = threading.Event()
    host = make_host(slow={"diagnose": lambda: end.wait(60)})
    assert list(host.diagnose()) == []
    assert "no answer within 0.05 s" in state_of(host, "slow")[1]
    end.set()


def test_shutdown_calls_all_and_waits_for_all_together_no_longer_than_told(caplog: pytest.LogCaptureFixture) -> None:
    end, done = threading.Event(), threading.Event()

    def finish() -> None:
        done.set()

    host = make_host(
        slow={"shutdown": lambda: end.wait(60)},
        slower={"shutdown": lambda: end.wait(60)},
        bad={"shutdown": explode},
        good={"shutdown": finish},
    )
    began = time.monotonic()
    host.shutdown(0.3)
    assert 0.2 < time.monotonic() - began < 2
    assert done.is_set()
    end.set()
    with caplog.at_level(logging.WARNING):
        assert "'slow' (dist-slow 1) is broken: TimeoutError" in caplog.text
        assert "'bad' (dist-bad 1) is broken: RuntimeError: boom" in caplog.text


def test_hook_of_a_coroutine_is_no_answer() -> None:
    async def offer() -> list[object]:
        return []

    host = make_host(modern={"register_backends": offer})
    with pytest.warns(RuntimeWarning, match="never awaited"):
        assert host.backends().names() == []
    assert state_of(host, "modern")[0] == "broken"


@pytest.mark.parametrize(("value", "lines"), [("1", 3), ("0", 0), ("", 0)])
def test_trace_writes_a_line_for_each_call(
    value: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARALLAX_TRACE_HOOKS", value)
    host = make_host(
        one={"register_backends": offer_nothing, "select_backend": lambda: "a"}, bad={"select_backend": explode}
    )
    host.backends()
    host.select_backend({}, ["a"])
    written = capsys.readouterr()
    assert written.out == ""
    assert len(written.err.splitlines()) == lines
    if lines:
        assert "hook parallax_register_backends plugin=dist-one:one took=" in written.err
        assert "returned list of 0" in written.err
        assert "raised RuntimeError: boom" in written.err
        assert "returned 'a'" in written.err
