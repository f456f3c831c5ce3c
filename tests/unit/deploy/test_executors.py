from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallax_core.base.errors import ParallaxError, UsageError
from parallax_core.base.ids import HEAD, Epoch
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.cluster.failure_detector import MIN_TIMEOUT_S
from parallax_core.cluster.placement.parallel import ParallelConfig, StagePlace
from parallax_core.config.config import Config
from parallax_core.config.serve import ServeSettings
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.stage import LayerRange
from parallax_core.contracts.transport import TransportPlan
from parallax_core.deploy.executors import RemoteStages, WorkerLauncher
from parallax_core.deploy.interpreter import read_pythons
from parallax_core.deploy.layer_weights import place_layers
from parallax_core.deploy.stage_options import choose_transport_name, read_parallel, read_stage_options, split_backends
from parallax_core.node.executor.remote import RemoteExecutor
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.membership.supervisor import WorkerSupervisor
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.plugins.host import PluginHost
from tests.support.node_services import equip
from tests.unit.plugins.site import Site

CONFIG = {"num_hidden_layers": 30}


def settings(**given: Any) -> ServeSettings:
    return ServeSettings(**given)


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, [None]),
        ({"stages": 3}, [10, 10, 10]),
        ({"layers": "0-5,5-30"}, [5, 25]),
        ({"layers": "0-5,5-30", "stages": 2}, [5, 25]),
        ({"stages": 30}, [1] * 30),
    ],
)
def test_layers_are_shared_out(given: dict[str, Any], sizes: list[int | None]) -> None:
    placed = place_layers(read_parallel(settings(**given)), PluginHost([]), CONFIG)
    [stages] = placed.replicas
    assert [place.layers and len(place.layers) for place in stages] == sizes


@pytest.mark.parametrize(
    ("given", "config", "reason"),
    [
        ({"layers": "0-5,5-30", "stages": 3}, CONFIG, "--layers names 2 stages, and --stages 3"),
        ({"layers": "0-5,6-30"}, CONFIG, "begins at layer 6, and must begin at 5"),
        ({"layers": "0-5,5-31"}, CONFIG, "the stages have layers 0 to 31, and the model has 30"),
        ({"layers": "0-5,x"}, CONFIG, "is not a range of layers"),
        ({"stages": 31}, CONFIG, "31 stages"),
        ({"stages": 2}, {}, "does not say how many layers"),
        ({"stages": 2}, {"text_config": "x"}, "does not say how many layers"),
        ({"stages": 2, "data_parallel": 2, "device": ("gpu:0",)}, CONFIG, "need 4"),
    ],
)
def test_split_that_cannot_be_is_refused(given: dict[str, Any], config: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        place_layers(read_parallel(settings(**given)), PluginHost([]), config)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "inprocess"),
        ({"stages": 2}, "zmq"),
        ({"data_parallel": 2}, "zmq"),
        ({"listen": "tcp://127.0.0.1:1"}, "zmq"),
        ({"python": ("a=b",)}, "zmq"),
        ({"spares": 1}, "zmq"),
        ({"stages": 2, "transport": "inprocess"}, "inprocess"),
        ({"transport": "zmq"}, "zmq"),
    ],
)
def test_processes_of_their_own_are_chosen_where_they_are_needed(given: dict[str, Any], name: str) -> None:
    assert choose_transport_name(settings(**given), read_parallel(settings(**given))) == name


@pytest.mark.parametrize("given", [{"listen": "tcp://127.0.0.1:1"}, {"python": ("a=b",)}, {"spares": 1}])
def test_one_process_cannot_do_what_takes_several(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="needs a transport between processes"):
        choose_transport_name(settings(transport="inprocess", **given), ParallelConfig())


@pytest.mark.parametrize(
    ("text", "num", "names"), [(None, 2, ("", "")), ("mlx", 2, ("mlx", "mlx")), ("mlx, torch", 2, ("mlx", "torch"))]
)
def test_each_stage_has_a_backend(text: str | None, num: int, names: Sequence[str]) -> None:
    assert split_backends(text, num) == names


@pytest.mark.parametrize(("text", "num"), [("mlx,torch", 3), ("mlx,torch", 1), ("mlx,", 2), (",", 2)])
def test_backends_that_do_not_fit_the_stages_are_refused(text: str, num: int) -> None:
    with pytest.raises(UsageError, match="backends, and there are"):
        split_backends(text, num)


def test_interpreter_that_has_parallax_is_taken() -> None:
    given = settings(python=(f"mlx={sys.executable}",))
    assert read_pythons(given, ("mlx",)) == {"mlx": sys.executable}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mlx", "is not of the form BACKEND=PYTHON"),
        ("=python", "is not of the form BACKEND=PYTHON"),
        ("mlx=/nowhere/python", "cannot run with /nowhere/python: No such file"),
        ("mlx=/", "cannot run with /: Permission denied"),
        ("mlx=/bin/false", "cannot run with /bin/false: it ends with exit code 1"),
        (f"torch={sys.executable}", "names the backend 'torch', and no stage uses it"),
    ],
)
def test_interpreter_that_will_not_do_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_pythons(settings(python=(text,)), ("mlx",))


def test_interpreter_without_parallax_is_refused_with_the_remedy(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    with pytest.raises(UsageError, match="No package metadata was found for parallax-core") as caught:
        read_pythons(settings(python=(f"mlx={python}",)), ("mlx",))
    assert f"{python} -m pip install parallax-core" in caught.value.hint


def test_interpreter_for_workers_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="with --listen it starts none"):
        read_pythons(settings(python=(f"mlx={sys.executable}",), listen="tcp://127.0.0.1:1"), ("mlx",))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"transport": "pigeons"}, "no transport named 'pigeons'"),
        ({"backend": "none-such"}, "no backend named 'none-such'"),
    ],
)
def test_wish_for_what_nobody_offers_is_refused(site: Site, given: dict[str, Any], reason: str) -> None:
    del site
    with pytest.raises(ParallaxError, match=reason):
        read_stage_options(settings(**given), PluginHost.prepare(Config.load()))


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, []),
        ({"memory": 1.5}, ["--memory", "1.5"]),
        ({"max_context": 4096}, ["--max-context", "4096"]),
        ({"labels": ("room=attic", "owner=ann")}, ["--label", "room=attic", "--label", "owner=ann"]),
        ({"as_joined": True}, ["--as-joined"]),
        ({"verbose": True}, ["--verbose"]),
    ],
)
def test_worker_is_started_with_what_the_user_says_of_this_machine(given: dict[str, Any], options: list[str]) -> None:
    registry = equip(NodeRegistry(InProcessTransport(TransportPlan(node=HEAD, listen="inprocess://head")), HEAD))
    usual = WorkerLauncher(
        transport="zmq", registry=registry, place=lambda node: f"ipc:///x/{node}", backends=("",), peer_timeout=2.5
    )
    plain, command = (each.make_command("worker/0/0") for each in (usual, replace(usual, **given)))
    assert command == plain + options


def test_worker_is_started_with_what_it_has_to_know(tmp_path: Path) -> None:
    registry = equip(NodeRegistry(InProcessTransport(TransportPlan(node=HEAD, listen="inprocess://head")), HEAD))
    launch = WorkerLauncher(
        transport="zmq",
        registry=registry,
        place=lambda node: f"ipc:///x/{node}",
        backends=("mlx", "torch"),
        pythons={"torch": "/other/python"},
        peer_timeout=2.5,
        config_file=Path("/x/parallax.toml"),
    )
    first, second = launch.make_command("worker/0/0"), launch.make_command("worker/1/1")
    assert first[0] == sys.executable
    assert first[-2:] == ["--backend", "mlx"]
    assert second[0] == "/other/python"
    assert second[second.index("--node") + 1] == "worker/1/1"
    assert second[second.index("--listen") + 1] == "ipc:///x/worker/1/1"
    assert "--supervised" in second
    assert first[first.index("--config") + 1] == "/x/parallax.toml"
    assert "--config" not in second, "another interpreter has other plugins, and other sections"
    stages = RemoteStages(
        model=str(tmp_path),
        backends=("mlx", "torch"),
        plan=StagePlan(model=tmp_path, memory_fraction=0.25, max_batch_tokens=99, max_running=7),
        registry=registry,
        supervisor=WorkerSupervisor(launch.make_command),
        heartbeat_s=1.0,
    )
    executor = stages.make_executor(
        1, [StagePlace(LayerRange(0, 1), ""), StagePlace(LayerRange(1, 2), "")], PipelineOptions()
    )
    assert isinstance(executor, RemoteExecutor)
    assert [post.node for post in executor.locations()] == ["worker/1/0", "worker/1/1"]
    said = [role.assign(Epoch(1)) for role in executor._assignments]
    assert [(each.memory_fraction, each.max_batch_tokens, each.max_running) for each in said] == [(0.25, 99, 7)] * 2


def test_timeouts_of_peers_are_those_of_the_transport_and_the_detector_unless_a_user_says_otherwise() -> None:
    plugins = PluginHost.prepare(Config.load())
    usual, changed = (
        read_stage_options(settings(stages=2, **given), plugins)
        for given in ({}, {"peer_timeout": 7.0, "min_peer_timeout": 3.0})
    )
    assert (usual.peer_timeout, changed.peer_timeout) == (2.5, 7.0)
    assert (usual.settings.min_peer_timeout, changed.settings.min_peer_timeout) == (MIN_TIMEOUT_S, 3.0)
