"""The commands that change the models of a running server, over the real one with toy models."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parallax_client.client import Client
from parallax_cluster.cli import served_models
from parallax_cluster.cli.served_models import describe_progress, render
from parallax_cluster.server.change_request import WantedChange
from parallax_core.base.errors import BackendFailed, ParallaxError
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from parallax_manage.models import app
from plugins.cluster.tests.server.several import SeveralSite, answer_of
from tests.support.peer import Peer
from tests.unit.server.thread import Threaded

SHOWS = "`parallax models served` shows what is loaded"
BODY = {"prompt": "hello", "max_tokens": 6}


class Server(Threaded):
    """A server of several models on a thread."""

    def __init__(self, options: ServerOptions | None = None) -> None:
        self.several = SeveralSite(options)
        super().__init__(options, self.several)

    def __exit__(self, *_: object) -> None:
        self.run(self.several.changes.stop())
        self.run(self.several.models.stop())
        super().__exit__()

    def hold(self, model: str) -> Callable[[], None]:
        """Have the opening of a model wait until the returned function is called."""
        gate = self.several.host.gates[model] = asyncio.Event()

        async def release() -> None:
            gate.set()

        return lambda: self.run(release())

    def finish(self) -> None:
        """Wait for the end of the change under way."""
        self.run(self.several.changes.wait())

    @property
    def states(self) -> dict[str, str]:
        return {each.id: each.state for each in self.several.models.all}

    def complete(self, model: str) -> Any:
        return Client(f"{self.url}/v1").send("/completions", {**BODY, "model": model})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PARALLAX_API_KEY", raising=False)
    monkeypatch.setattr(served_models, "LOOK_S", 0.001)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def run(url: str, *arguments: str) -> tuple[str, str]:
    """Run ``parallax models`` for a server, and return what it prints and its progress; what it raises is raised."""
    given = [*arguments, "--url", f"{url}/v1"]
    ran = CliRunner().invoke(app, given, catch_exceptions=False, standalone_mode=False)
    if ran.exception is not None:
        raise ran.exception
    return ran.stdout, ran.stderr


def after_looks(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], object]) -> None:
    """Have the steps happen one after the other, each after the command has looked at a change."""
    left = list(steps)
    monkeypatch.setattr("parallax_cluster.cli.served_models.time.sleep", lambda _: left and left.pop(0)())


def test_models_of_a_server_are_shown_with_their_states_and_layers(server: Server) -> None:
    run(server.url, "load", "other")
    run(server.url, "load", "third")
    run(server.url, "unload", "toy")
    assert run(server.url, "served")[0] == (
        "MODEL  STATE     REQUESTS  LAYERS\n"
        "other  ready     0         0-2 on n/1\n"
        "third  ready     0         0-2 on n/1\n"
        "toy    unloaded  0         -\n"
    )
    found = json.loads(run(server.url, "served", "--json")[0])
    assert [each["id"] for each in found["data"]] == ["other", "third", "toy"]
    assert (found["object"], found["change"]["action"]) == ("cluster.models", "unload")


def test_change_under_way_is_shown_with_the_model_it_loads(server: Server) -> None:
    release = server.hold("other")
    assert run(server.url, "load", "other", "--no-wait")[0] == "begun; `parallax models served` shows how far it is\n"
    lines = run(server.url, "served")[0].splitlines()
    assert lines[2] == "other  loading  0         -"
    assert lines[3].startswith("under way: load other, loading for ")
    release()
    server.finish()
    assert "under way" not in run(server.url, "served")[0]


def test_load_waits_for_the_end_and_shows_each_state_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    release = server.hold("other")

    def end() -> None:
        release()
        server.finish()

    after_looks(monkeypatch, lambda: None, end)
    assert run(server.url, "load", "other") == ("other is loaded\n", "other: starting\n")
    assert server.complete("other").body["choices"][0]["text"] == answer_of("other", "hello", 6)


def test_switch_shows_the_requests_that_it_waits_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    may_step, has_arrived, replies = threading.Event(), threading.Event(), list[Any]()

    def wait(_: object) -> None:
        has_arrived.set()
        may_step.wait(20)

    server.several.stage.before_step = wait
    asking = threading.Thread(target=lambda: replies.append(server.complete("toy")))
    asking.start()
    assert has_arrived.wait(20)
    release = server.hold("other")

    def drain() -> None:
        release()
        while server.states["toy"] != "draining":
            pass

    def end() -> None:
        may_step.set()
        server.finish()

    after_looks(monkeypatch, drain, end)
    done = run(server.url, "switch", "other")
    asking.join(20)
    assert done == (
        "other is loaded\ntoy is unloaded\n",
        "other: starting\ntoy: 1 requests are still running\n",
    )
    assert replies[0].body["choices"][0]["text"] == answer_of("toy", "hello", 6)
    assert server.states == {"other": "ready", "toy": "unloaded"}


def test_model_that_cannot_be_loaded_is_an_error_and_the_old_one_answers_on(server: Server) -> None:
    server.several.host.faults["other"] = BackendFailed("the weights are damaged", "fetch them again")
    with pytest.raises(ParallaxError, match=r"^the weights are damaged; fetch them again$") as caught:
        run(server.url, "switch", "other")
    assert caught.value.hint == SHOWS
    assert server.complete("toy").status == 200
    lines = run(server.url, "served")[0].splitlines()
    assert lines[2:] == ["other could not be loaded: the weights are damaged; fetch them again"]
    server.several.host.faults.clear()
    run(server.url, "load", "other")
    run(server.url, "unload", "other")
    server.several.host.faults["other"] = BackendFailed("the weights are damaged", "fetch them again")
    with pytest.raises(ParallaxError):
        run(server.url, "load", "other")
    lines = run(server.url, "served")[0].splitlines()
    assert lines[2:] == [
        "other  unloaded  0         -",
        "other could not be loaded: the weights are damaged; fetch them again",
    ]


def test_model_that_is_not_loaded_is_forgotten(server: Server) -> None:
    run(server.url, "load", "other")
    with pytest.raises(ParallaxError, match="the model 'other' is ready") as caught:
        run(server.url, "forget", "other")
    assert "unload it first: `parallax models unload other`" in f"{caught.value.message} {caught.value.hint}"
    run(server.url, "unload", "other")
    assert run(server.url, "forget", "other")[0] == "other is forgotten\n"
    assert server.states == {"toy": "ready"}


def test_old_model_that_is_loaded_again_is_shown_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.several.host.faults["other"] = BackendFailed("the weights are damaged")
    fail, restore = server.hold("other"), server.hold("toy")

    def begin_again() -> None:
        fail()
        latest = server.several.changes.latest
        assert latest is not None
        while latest.state != "restoring":
            pass

    def end() -> None:
        restore()
        server.finish()

    run(server.url, "load", "third")
    begin = Client.change_models

    def change_and_wait(self: Client, body: dict[str, Any]) -> str:
        """Begin the change, and wait until the old model is unloaded, so that the first look sees the next step."""
        begun = begin(self, body)
        while "other" not in server.several.host.opened:
            pass
        return begun

    monkeypatch.setattr(Client, "change_models", change_and_wait)
    after_looks(monkeypatch, begin_again, end)
    arguments = ("switch", "other", "--from", "toy", "--drain-first")
    given = CliRunner().invoke(app, [*arguments, "--url", f"{server.url}/v1"])
    assert (given.stderr, given.stdout) == ("other: starting\ntoy: starting\n", "")
    assert isinstance(given.exception, ParallaxError)
    assert given.exception.message == "the weights are damaged"
    assert server.states == {"toy": "ready", "third": "ready"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unload", "nobody"), "the model 'nobody' does not exist"),
        (("switch", "other", "--from", "nobody"), "the model 'nobody' does not exist"),
        (("load", "toy"), "the model 'toy' is loaded already"),
        (("load", "bad name"), "'bad name' names no model"),
        (("load", "missing"), "there is no model 'missing'"),
    ],
)
def test_change_that_a_server_refuses_is_an_error(server: Server, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ParallaxError, match=message):
        run(server.url, *arguments)
    assert server.states["toy"] == "ready"
    assert server.complete("toy").status == 200


def test_options_of_a_switch_reach_the_server(server: Server) -> None:
    run(server.url, "load", "third")
    run(server.url, "switch", "other", "--from", "toy", "--drain", "7.5", "--drain-first")
    latest = server.several.changes.latest
    assert latest is not None
    assert latest.wanted == WantedChange(action="switch", model="other", replaces="toy", drain_s=7.5, drain_first=True)
    run(server.url, "unload", "other", "--drain", "0")
    assert server.several.changes.latest is not latest
    assert server.states == {"third": "ready", "toy": "unloaded", "other": "unloaded"}


def test_change_is_followed_though_another_has_begun_since(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Client.change_models

    def change_and_be_followed(self: Client, body: dict[str, Any]) -> str:
        begun = begin(self, body)
        server.finish()
        begin(self, {"action": "unload", "model": "other"})
        return begun

    monkeypatch.setattr(Client, "change_models", change_and_be_followed)
    assert run(server.url, "load", "other")[0] == "other is loaded\n"


def test_folder_is_named_to_the_server_by_its_whole_path(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for model in ("./folder", "file"):
        with pytest.raises(ParallaxError, match="there is no model"):
            run(server.url, "load", model)
    assert server.several.host.opened == [str(tmp_path / "folder"), "file"]


def test_error_is_printed_with_its_hint_and_no_traceback(server: Server) -> None:
    done = in_a_process(server, "load", "missing")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-2:] == ["error: there is no model 'missing'", f"hint: {SHOWS}"]
    done = in_a_process(server, "unload", "toy", "--drain", "-1")
    assert (done.returncode, done.stderr.startswith("error: Invalid value for '--drain'")) == (2, True), done.stderr


def in_a_process(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``parallax models`` as users do."""
    command = [sys.executable, "-m", "parallax_core", "models", *arguments, "--url", f"{server.url}/v1"]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False, timeout=60)


@pytest.mark.parametrize(("key", "is_right"), [(None, False), ("u", False), ("a", True)])
def test_only_the_key_of_an_administrator_will_do(
    key: str | None, is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("PARALLAX_API_KEY", key)
    with Server(ServerOptions(keys=ApiKeys({"u": "user", "a": "admin"}))) as server:
        if is_right:
            assert run(server.url, "load", "other")[0] == "other is loaded\n"
            return
        for arguments in (("served",), ("load", "other")):
            with pytest.raises(ParallaxError) as caught:
                run(server.url, *arguments)
            assert caught.value.hint == "set PARALLAX_API_KEY to a key that has the role 'admin' on that server"
        assert server.states == {"toy": "ready"}


@pytest.mark.parametrize(("body", "status"), [(b"<html>", 200), (b"[]", 200), (b"{}", 200), (b"Not Found", 404)])
@pytest.mark.parametrize("arguments", [("served",), ("load", "other")])
def test_server_of_another_kind_is_an_error(peer: Peer, body: bytes, status: int, arguments: tuple[str, ...]) -> None:
    peer.body, peer.status = body, status
    with pytest.raises(ParallaxError) as caught:
        run(peer.url.removesuffix("/v1"), *arguments)
    if status == 200 or arguments == ("served",):
        assert caught.value.message == f"the server at {peer.url} is not a Parallax server"
        assert "--url" in caught.value.hint


def test_server_that_starts_anew_during_a_change_is_an_error(peer: Peer) -> None:
    peer.body = b'{"id": "change-1"}'
    peer.models = json.dumps({"object": "cluster.models", "data": [], "change": None, "earlier": []}).encode()
    with pytest.raises(ParallaxError, match="has restarted") as caught:
        run(peer.url.removesuffix("/v1"), "load", "other")
    assert caught.value.hint == SHOWS


def test_server_that_is_not_there_is_an_error() -> None:
    for arguments in (("served",), ("load", "other")):
        with pytest.raises(ParallaxError, match=r"no server answers at http://127.0.0.1:1/v1: .*refused"):
            run("http://127.0.0.1:1", *arguments)


NODE: dict[str, Any] = {"node": "a/1", "layers": [0, 10], "task": "loading weights", "done": 1, "total": 4}


def show(*nodes: dict[str, Any], state: str = "loading", **change: Any) -> dict[str, Any]:
    """Return a server's answer about the model ``new``, on nodes, while it is changed."""
    known = {"id": "new", "state": "loading", "error": None, "requests": 0, "nodes": nodes}
    told = {"action": "load", "model": "new", "replaces": None, "state": state, "seconds": 12.4, **change}
    return {"data": [known], "change": told}


def describe(found: dict[str, Any]) -> str:
    return describe_progress(found, found["change"])


def test_progress_names_each_node_that_loads_something() -> None:
    unknown = {**NODE, "node": "b/1", "layers": [10, 20], "task": "fetching", "total": None}
    silent = {**NODE, "node": "c/1", "task": None}
    assert describe(show(NODE, silent, unknown)) == "new: a/1 loading weights 25%, b/1 fetching"
    assert describe(show(silent)) == "new: starting"
    assert describe(show(state="draining", action="unload")) == "new: 0 requests are still running"


def test_layers_of_several_nodes_are_in_one_row() -> None:
    second = {**NODE, "node": "b/1", "layers": [10, 30]}
    assert list(render(show(NODE, second))) == [
        "MODEL  STATE    REQUESTS  LAYERS",
        "new    loading  0         0-10 on a/1, 10-30 on b/1",
        "under way: load new, loading for 12 s",
    ]
    assert len(list(render(show(state="failed")))) == 2


def test_failure_is_shown_where_its_reason_is_not_told() -> None:
    change = {"action": "load", "model": "new", "state": "failed", "error": None, "seconds": 1.0}
    assert list(render({"data": [], "change": change}))[1:] == ["new could not be loaded"]
