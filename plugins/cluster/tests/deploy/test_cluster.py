"""What `parallax run` makes of its settings, with the real plugins and a model folder without weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from safetensors.numpy import save_file

from parallax_cluster.config.home import cluster_file, plan_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy import cluster as module
from parallax_cluster.deploy.cluster import ClusterPlan, read_cluster_plan
from parallax_cluster.deploy.weight_size import measure_model
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.config.config import Config
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.device import DType
from parallax_core.contracts.joining import ListeningHead
from parallax_core.deploy.deployment import Deployment
from parallax_core.node.events.delivery import EventBus
from parallax_core.plugins.host import PluginHost
from parallax_core.server.options import ServerOptions
from parallax_core.server.served_models import ServedModels
from tests.e2e.tiny import Sizes, draw_tensors
from tests.unit.deploy.readers import LocalMaker
from tests.unit.tinymodel import write_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginHost:
    monkeypatch.setenv("PARALLAX_HOME", str(tmp_path / "home"))
    return PluginHost.prepare(Config())


def make_plan(plugins: PluginHost, **given: Any) -> ClusterPlan:
    return read_cluster_plan(RunSettings(**{"listen": "tcp://127.0.0.1:0", "model": "hf:org/model", **given}), plugins)


def make_stages(plan: ClusterPlan, folder: Path) -> Any:
    """Return the stages of a deployment for the model in ``folder``."""
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return plan.deployment.stages.make_stages(StagePlan(model=folder), (None,), folder)


def test_settings_are_those_of_a_server_that_listens_for_nodes() -> None:
    settings = RunSettings(model="org/model", listen="tcp://10.0.0.5:1", backend="mlx", port=9, max_running=3)
    serve = settings.as_serve()
    assert (serve.model, serve.listen) == ("org/model", "tcp://10.0.0.5:1")
    assert (serve.backend, serve.transport) == ("mlx", "zmq")
    assert (serve.port, serve.max_running, serve.stages, serve.spares) == (9, 3, 1, 0)


def test_machine_gets_a_key_before_it_listens(plugins: PluginHost, tmp_path: Path) -> None:
    make_plan(plugins)
    assert list((tmp_path / "home/keys/own").glob("*.key"))


def test_unknown_placement_policy_is_an_error(plugins: PluginHost) -> None:
    with pytest.raises(UnknownName, match="fastest"):
        make_plan(plugins, placement="fastest")


async def test_worker_of_this_machine_joins_and_measures_itself(plugins: PluginHost, tmp_path: Path) -> None:
    plan = make_plan(plugins, memory=0.25, backend="mlx")
    stages = make_stages(plan, tmp_path)
    await stages.registry.start()
    command = plan.make_launcher(stages).make_command("local/0")
    await stages.registry.stop()
    assert {"--supervised", "--as-joined"} <= set(command)
    given = dict(pairwise(command))
    assert (given["--node"], given["--memory"], given["--backend"]) == ("local/0", "0.25", "mlx")
    assert (given["--transport"], given["--listen"]) == ("zmq", "tcp://127.0.0.1:0")


def test_join_command_has_a_code_unless_there_is_to_be_none(plugins: PluginHost, tmp_path: Path) -> None:
    plan = make_plan(plugins)
    stages = make_stages(plan, tmp_path)
    head = ListeningHead("zmq", bytes(32) + b"10.0.0.5:9000")
    assert plan.make_command(head, stages).startswith("parallax join plx1")
    none = replace(plan, settings=replace(plan.settings, code_hours=0.0))
    assert none.make_command(head, stages).startswith("parallax worker --connect")
    assert plan.make_command(None, stages).startswith("parallax worker --connect")
    cluster_file().write_bytes(b"no database" * 100)
    assert plan.make_command(head, stages).startswith("parallax worker --connect")


def test_code_is_not_shown_where_anybody_may_look(plugins: PluginHost) -> None:
    assert make_plan(plugins).shows_code
    assert not make_plan(plugins, insecure=True).shows_code


@pytest.mark.parametrize(
    ("backend", "dtype", "size"),
    [
        ("mlx", "auto", 4),  # on a CPU
        ("mlx", "float16", 2),
        ("torch", "float32", 2),  # weights that are stored in bfloat16 stay so
        ("vllm", "auto", 2),  # it does not tell
        ("vllm", "float32", 4),
    ],
)
def test_model_takes_what_its_backend_loads(
    plugins: PluginHost, tmp_path: Path, backend: str, dtype: DType, size: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    demand = measure_model(plugins, tmp_path, dtype, backend)
    assert (len(demand.layers), demand.shared) == (4, 256 * 64 * size)


def test_model_that_no_adapter_knows_cannot_be_planned(plugins: PluginHost, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["Unheard"], "model_type": "unheard"}))
    with pytest.raises(ParallaxError, match="no installed plugin knows the architecture"):
        measure_model(plugins, tmp_path, "auto")


@pytest.mark.parametrize("holds", [False, True])
def test_layers_are_held_if_that_is_asked_for(plugins: PluginHost, tmp_path: Path, *, holds: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    deployment = cast("Deployment", SimpleNamespace(folder=tmp_path))
    assert make_plan(plugins, hold_moves=holds).make_planner(deployment, 0).rules.holds == holds


class Formed:
    """A cluster whose server has begun, and what it has."""

    def __init__(self, plugins: PluginHost, model: Path, **given: Any) -> None:
        """Have no machine of its own, so that nothing is loaded."""
        plan = make_plan(plugins, model=str(model), local=False, **given)
        self.served = ServedModels()
        maker = LocalMaker(self.served, ServerOptions(), EventBus([]))
        self.deployment = plan.prepare(model.parent / "private")
        self.cluster = plan.form(self.deployment, maker)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of a model."""
    return write_folder(tmp_path / "here/first")


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_model(folder)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    save_file(dict(draw_tensors(256, Sizes(layers=4, hidden=64, inner=128, context=512))), folder / "model.safetensors")
    return folder


async def test_loaded_models_are_remembered_over_a_restart(plugins: PluginHost, model: Path) -> None:
    formed = Formed(plugins, model)
    assert formed.cluster.recall() == ()
    formed.cluster.remember((str(model), "hf:org/other", "hf:org/third"))
    assert tuple(Formed(plugins, model).cluster.recall()) == ("hf:org/other", "hf:org/third")
    formed.cluster.remember((str(model),))
    assert tuple(Formed(plugins, model).cluster.recall()) == ()


async def test_server_goes_on_without_a_record_of_its_models(
    plugins: PluginHost, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    formed = Formed(plugins, model)
    plan_file().write_bytes(b"no database" * 100)
    formed.cluster.remember((str(model), "hf:org/other"))
    assert "after a restart of the server, only its first model is loaded" in caplog.text
    caplog.clear()
    assert tuple(formed.cluster.recall()) == ()
    assert caplog.text


async def test_model_is_named_as_its_folder_or_as_it_is_loaded(plugins: PluginHost, model: Path) -> None:
    cluster = Formed(plugins, model).cluster
    assert cluster.name(str(model)) == "first"
    assert cluster.name("hf:org/other") == "hf:org/other"
    with pytest.raises(ParallaxError):
        cluster.name("nosource:org/name")


async def test_further_model_waits_for_no_number_of_nodes_and_is_not_started(plugins: PluginHost, model: Path) -> None:
    cluster = Formed(plugins, model, nodes=3).cluster
    other = await cluster.open(str(write_folder(model.parent / "other")))
    assert other.deployment.model_id == "other"
    assert other.deployment.folder.name == "other"
    assert not other.waits
    assert cluster.first.waits
    assert cluster.engines == cluster.first.engines != other.engines


async def test_machines_join_by_the_command_that_is_shown(plugins: PluginHost, model: Path) -> None:
    for insecure in (False, True):
        formed = Formed(plugins, model, insecure=insecure)
        async with formed.cluster.running(None):
            command = formed.cluster.join_command
            assert command.startswith("parallax worker --connect")
            shown = formed.cluster.find_plan("what is not loaded")
            assert shown.join_command == ("" if insecure else command)
            assert (shown.term, tuple(shown.standbys)) == (0, ())


async def test_server_ends_once_another_coordinator_has_taken_over(
    plugins: PluginHost, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Callable[[str], None]] = []

    @asynccontextmanager
    async def followed(*given: Any) -> AsyncIterator[Any]:
        told.append(given[-1])
        state = SimpleNamespace(term=7)
        yield SimpleNamespace(own=SimpleNamespace(state=state), names=("attic",))

    monkeypatch.setattr(module, "followed", followed)
    cluster = Formed(plugins, model).cluster
    head = ListeningHead("zmq", bytes(32) + b"10.0.0.5:9000")
    async with cluster.running(head):
        shown = cluster.find_plan("what is not loaded")
        assert (shown.term, tuple(shown.standbys)) == (7, ("attic",))
        ending = asyncio.create_task(cluster.await_end())
        await asyncio.sleep(0)
        assert not ending.done()
        told[0]("attic has taken over")
        told[0]("so says another node")
        with pytest.raises(ParallaxError, match=r"^attic has taken over$") as caught:
            await asyncio.wait_for(ending, 5)
    assert caught.value.hint
