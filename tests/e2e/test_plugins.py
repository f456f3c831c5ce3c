"""A plugin that does all a plugin can do, in a server that is a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from parallax_core.plugins.discovery import DISABLED_VARIABLE
from tests.e2e.conftest import END_TIMEOUT_S
from tests.unit.plugins.site import PARALLAX, Site

LETTERS = "abcdefghijklmnopqrstuvwxyz "

PLUGIN = """
import json
import os
import sys
import threading
import time
from dataclasses import dataclass

from parallax_core.api import Availability, BackendSpec, Ref, SettingsSpec, hookimpl

print("noise of an import")
LOG = os.environ["PLUGIN_LOG"]


def note(hook, **facts):
    with open(LOG, "a") as log:
        log.write(json.dumps({"hook": hook, **facts}) + "\\n")


@dataclass(frozen=True)
class ToySettings:
    greeting: str = "hello"
    misbehaves: bool = False


def probe():
    return Availability(ok=True, device="toy", advice="a real model is slower")


class ToyBackend:
    def open_stage(self, plan):
        print("noise of a stage")
        os.write(1, b"noise below Python\\n")
        from parallax_core.testing.toy import Toy

        return Toy(("full", "full"), vocab=27).open(plan.layers, num_pages=200, context=400, max_batch_tokens=64)


@hookimpl
def parallax_register_backends():
    return [
        BackendSpec(name=name, summary="s", probe=Ref("{module}:probe"), factory=Ref(f"{module}:{factory}"), rank=rank)
        for name, factory, rank in (("high", "Missing", 100), ("low", "ToyBackend", -1))
    ]


@hookimpl
def parallax_register_settings():
    return [SettingsSpec(name="toy", summary="s", schema=Ref("{module}:ToySettings"))]


@hookimpl
def parallax_configure(config):
    global settings
    settings = config.section(ToySettings)
    note("configure", greeting=settings.greeting)


@hookimpl
def parallax_select_backend(model_config, available):
    note("select_backend", model=model_config["model_type"], first=available[0])
    return "low"


@hookimpl
def parallax_extend_server(server):
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/toy/greeting")
    async def greet():
        return {"said": settings.greeting, "state": server.engine.health().state}

    server.add_router(router)


@hookimpl
def parallax_observe(event):
    print("noise of a watcher")
    note("observe", event=type(event).__name__, thread=threading.current_thread().name)
    if settings.misbehaves:
        time.sleep(600)


@hookimpl
def parallax_shutdown():
    note("shutdown")
    if settings.misbehaves:
        time.sleep(600)
"""


def write_model(folder: Path) -> None:
    """Write a model with one token for each letter, and no weights: the toy needs none."""
    folder.mkdir()
    tokenizer = Tokenizer(models.WordLevel({letter: number for number, letter in enumerate(LETTERS)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.safetensors").touch()
    (folder / "config.json").write_text(json.dumps({"model_type": "toy", "vocab_size": len(LETTERS)}))


class Toyland:
    """A server of the toy."""

    def __init__(self, folder: Path, *options: str, **changes: str) -> None:
        self.log = folder / "hooks"
        self.errors = folder / "errors"
        site = Site(folder)
        site.install("toy", PLUGIN)
        write_model(folder / "model")
        environ = site.environment(PLUGIN_LOG=str(self.log), PARALLAX_SERVE__PORT="0", **changes)
        disabled = environ[DISABLED_VARIABLE].split(",")  # all but what answers the requests here
        environ[DISABLED_VARIABLE] = ",".join(name for name in disabled if name != "parallax-api-openai")
        command = [PARALLAX, "serve", "model", *options]
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        self.url = self.ready.split()[1].removesuffix("/v1") if self.ready else ""

    def get(self, path: str, **body: Any) -> Any:
        """Return the answer to a request, with a body if there are fields for one."""
        data = json.dumps(body).encode() if body else None
        asked = urllib.request.Request(
            self.url + path, data, {"Authorization": "Bearer k", "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return json.load(answer)

    def end(self) -> float:
        """End the server, and return how long that took, in seconds."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=30)
        assert output == ""
        return time.monotonic() - began

    def hooks(self) -> list[dict[str, Any]]:
        """Return what the plugin has noted."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def toyland(tmp_path: Path) -> Iterator[Toyland]:
    (tmp_path / "parallax.toml").write_text('[toy]\ngreeting = "good day"\n')
    toyland = Toyland(tmp_path, PARALLAX_API_KEY="k")
    yield toyland
    toyland.process.kill()
    toyland.process.communicate()


def test_plugin_is_asked_and_told_of_everything(toyland: Toyland) -> None:
    assert toyland.ready.startswith("ready http://127.0.0.1:"), toyland.errors.read_text()
    assert toyland.get("/toy/greeting") == {"said": "good day", "state": "ready"}
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(toyland.url + "/toy/greeting", timeout=20)
    refused.value.close()
    answer = toyland.get("/v1/completions", model="model", prompt="abc", max_tokens=9)
    assert answer["usage"]["completion_tokens"] == 9
    assert toyland.end() < END_TIMEOUT_S
    assert toyland.process.returncode == 0
    hooks = toyland.hooks()
    assert hooks[:2] == [
        {"hook": "configure", "greeting": "good day"},
        {"hook": "select_backend", "model": "toy", "first": "high"},
    ]
    told = [each["event"] for each in hooks if each["hook"] == "observe"]
    assert told == ["EngineReady", "RequestBegan", "RequestEnded"]
    assert {each["thread"] for each in hooks if each["hook"] == "observe"} == {"observer toy"}
    assert hooks[-1] == {"hook": "shutdown"}
    errors = toyland.errors.read_text()
    assert [noise for noise in ("an import", "a stage", "a watcher") if f"noise of {noise}" not in errors] == []
    assert "noise below Python" in errors
    assert "\nhint: a real model is slower\n" in errors


def test_plugin_that_hangs_everywhere_holds_nobody_up(tmp_path: Path) -> None:
    toyland = Toyland(tmp_path, PARALLAX_TOY__MISBEHAVES="true")
    try:
        for _ in range(3):
            assert toyland.get("/v1/completions", model="model", prompt="abc", max_tokens=2)["choices"]
        assert toyland.end() < END_TIMEOUT_S
        assert toyland.process.returncode == 0
    finally:
        toyland.process.kill()
    errors = toyland.errors.read_text()
    assert "plugin 'toy' missed 6 events" in errors
    assert "TimeoutError" in errors
    assert [each["hook"] for each in toyland.hooks()] == ["configure", "select_backend", "observe", "shutdown"]


def test_backend_that_is_named_is_not_asked_about(tmp_path: Path) -> None:
    toyland = Toyland(tmp_path, "--backend", "high")
    toyland.process.wait(60)
    toyland.process.communicate()
    assert toyland.process.returncode == 1
    assert "'high' of toy 1.0 cannot be loaded: AttributeError" in toyland.errors.read_text()
    assert [each["hook"] for each in toyland.hooks()] == ["configure", "shutdown"]
