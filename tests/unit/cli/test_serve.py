from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import pytest

from parallax_core.base.errors import BrokenPlugin, UsageError
from parallax_core.base.offline import HUB_VARIABLE, OFFLINE_VARIABLE, is_offline
from parallax_core.base.refs import Ref
from parallax_core.cli.contacts import Contacts
from parallax_core.cli.progress import Lines
from parallax_core.cli.serve import ServeDisplay, run_service
from parallax_core.cluster.placement.parallel import ParallelConfig
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import BackendSpec, StagePlan
from parallax_core.contracts.progress import Progress
from parallax_core.contracts.stage import Stage
from parallax_core.deploy.deployment import Deployment
from parallax_core.deploy.executors import LocalStages
from parallax_core.deploy.fixed import FixedReplicas
from parallax_core.deploy.kinds import ServePlan
from parallax_core.deploy.services import ServiceMaker
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.discovery import PluginRecord
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer
from parallax_core.testing.toy import Toy
from parallax_policies.routing import RoundRobin
from tests.unit.plugins.site import Site
from tests.unit.tinymodel import write, write_model

TOY = Toy(layers=("full", "full"))
MB = 10**6


class ToyBackend:
    """Opens stages of the toy."""

    def open_stage(self, plan: StagePlan) -> Stage:
        return TOY.open(plan.layers, num_pages=40)


class Noted(Lines):
    """A display that keeps what is told, each line with its stream."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, TextIO | None]] = []
        self.on_told: Callable[[str], None] = lambda _: None

    def tell(self, line: str, stream: TextIO | None) -> None:
        self.told.append((line, stream))
        self.on_told(line)

    def finish(self) -> None:
        self.told.append(("finished", None))


@dataclass(frozen=True)
class ToyPlan:
    """A server of the toy; its replicas are core's own."""

    folder: Path
    join_command: str = ""
    model: str = "toy"
    place: str = "with wood"
    address: tuple[str, int] = ("127.0.0.1", 0)
    num_replicas: int = 1
    prepared: list[Path] = field(default_factory=list)

    def prepare(self, private: Path, progress: Progress) -> Deployment:
        assert not list(private.iterdir())
        self.prepared.append(private)
        progress("preparing", 1, 1)
        return make_deployment(self.folder, self.num_replicas)

    def form(self, deployment: Deployment, maker: ServiceMaker) -> FixedReplicas:
        replicas = FixedReplicas(deployment, maker)
        replicas.join_command = self.join_command
        return replicas


HERE = Ref[Any](f"{__name__}:ToyBackend")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    for name in (OFFLINE_VARIABLE, HUB_VARIABLE):  # set first, so that both are restored
        monkeypatch.setenv(name, "")
    model = tmp_path / "toy"
    model.mkdir()
    return write_model(model)


def make_deployment(folder: Path, num_replicas: int = 1) -> Deployment:
    spec = BackendSpec(name="toy", summary="", probe=HERE, factory=HERE)
    record = PluginRecord(name="toy", distribution="toy", version="1", module=__name__, state="loaded")
    stages = LocalStages(plugins=PluginHost([]), offers=(Offer(spec, record),), plan=StagePlan(model=folder))
    return Deployment(
        model_id="toy",
        folder=folder,
        text=ModelTokenizer(folder),
        stages=stages,
        pipeline=PipelineOptions(),
        topology=ParallelConfig(data_parallel=num_replicas),
        routing=RoundRobin(),
        advice=("pip install wood",),
    )


@contextmanager
def restored_log() -> Iterator[None]:
    """Undo what a server does to the log of its process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


def serve_and_ask(plan: ToyPlan, settings: ServeSettings, display: Noted, *paths: str) -> dict[str, Any]:
    """Run a server until it is ready, return what it answers at these paths, and end it as a service manager does."""
    answers: dict[str, Any] = {}

    def ask(url: str) -> None:
        try:
            for path in paths:
                with urllib.request.urlopen(url + path, timeout=20) as response:
                    answers[path] = json.load(response)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def notice(line: str) -> None:
        if line.startswith("ready "):
            threading.Thread(target=ask, args=(line.split()[1],)).start()

    def read(_: PluginHost) -> ServePlan:
        return plan

    display.on_told = notice
    with restored_log():
        run_service(settings, Config(), read, Contacts(fetches=False), ServeDisplay(lambda: display))
    return answers


def test_server_serves_its_plan_until_a_signal_and_leaves_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, display = ToyPlan(folder, join_command="parallax join plx1"), Noted()
    settings = ServeSettings(served_model_name=("wood",), drain=0)
    answers = serve_and_ask(plan, settings, display, "/models")
    assert {each["id"] for each in answers["/models"]["data"]} == {"toy", "wood"}
    [first, join, finished, ready, talk, *notes, hint] = [line for line, _ in display.told]
    assert first.endswith(": loading toy with wood")
    assert join == "parallax join plx1"
    assert finished == "finished"
    assert ready.startswith("ready http://127.0.0.1:")
    assert ready.endswith("/v1 model=toy")
    assert talk.startswith("talk to it: ")
    assert f"chat --url {ready.split()[1]}" in talk
    assert hint.startswith("hint: ")
    streams = [stream is sys.stderr for _, stream in display.told]
    assert streams == [True, *[False] * 3, True, *[True] * len(notes), True]
    assert [private.exists() for private in plan.prepared] == [False]
    assert "preparing: 0.0 of 0.0 MB" in capfd.readouterr().err
    port = int(ready.split("/v1")[0].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_what_is_ready_is_logged_with_its_limits(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(folder, "generation_config.json", temperature=0.5, top_k=40)
    plan, display = ToyPlan(folder, address=("::1", 0), num_replicas=2), Noted()
    with caplog.at_level(logging.DEBUG, "parallax_core.cli.serve"):
        serve_and_ask(plan, ServeSettings(host="::1", drain=0), display)
    [ready] = [line for line, _ in display.told if line.startswith("ready ")]
    assert ready.startswith("ready http://[::1]:")
    info = TOY.open(None, num_pages=40).info
    room = info.pools[0].num_pages * info.pools[0].page_size
    defaults, *stages, limits = [
        record.getMessage() for record in caplog.records if record.name == "parallax_core.cli.serve"
    ]
    assert defaults == "default sampling temperature=0.5 top_k=40 (OpenAI's: --set generation_config=off)"
    stage = (
        f"stage ready layers=0-2 device={info.device!r} dtype={info.dtype} weights={info.weight_bytes / MB:.0f}MB "
        f"kv_room={room} tokens, of which a request may hold {min(room, info.context_length)}"
    )
    assert stages == [stage] * 2
    assert limits == (
        "limits of a replica max_running=4 max_waiting=256 max_batch_tokens=8, of a stage memory_fraction=0.5"
    )


def refuse(_: PluginHost) -> ServePlan:
    raise AssertionError("what is wrong is found before the model is looked for")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"host": "0.0.0.0"}, "listening on 0.0.0.0 lets others use this server"),  # noqa: S104 -- it is refused
        ({"tls_key": Path("key")}, "there is a --tls-key without a --tls-cert"),
    ],
)
def test_server_that_may_not_listen_reads_no_plan(folder: Path, given: dict[str, Any], problem: str) -> None:
    with restored_log(), pytest.raises(UsageError, match=problem):
        run_service(ServeSettings(**given), Config(), refuse, Contacts())


def test_offline_server_is_offline_before_anything_is_read(folder: Path) -> None:
    seen: list[bool] = []

    def note(_: PluginHost) -> ServePlan:
        seen.append(is_offline())
        raise UsageError("enough", "")

    for offline in (False, True):
        with restored_log(), pytest.raises(UsageError, match="enough"):
            run_service(ServeSettings(offline=offline), Config(), note, Contacts())
    assert seen == [False, True]


def test_strict_server_refuses_a_plugin_that_cannot_be_loaded_before_the_plan(site: Site) -> None:
    site.install("bad", "import not_there")

    def read(_: PluginHost) -> ServePlan:
        raise UsageError("the plan is read", "")

    with restored_log(), pytest.raises(UsageError, match="the plan is read"):
        run_service(ServeSettings(), Config(), read, Contacts())
    with restored_log(), pytest.raises(BrokenPlugin, match="'bad'"):
        run_service(ServeSettings(strict_plugins=True), Config(), read, Contacts())
