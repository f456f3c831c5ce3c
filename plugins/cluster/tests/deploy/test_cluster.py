"""What `parallax run` makes of its settings, with the real plugins and a model folder without weights."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parallax_cluster.config.home import cluster_file
from parallax_cluster.config.run import RunSettings
from parallax_cluster.deploy.cluster import ClusterPlan, measure_model, read_cluster_plan
from parallax_core.base.errors import ParallaxError, UnknownName
from parallax_core.config.config import Config
from parallax_core.contracts.backend import StagePlan
from parallax_core.contracts.device import DType
from parallax_core.contracts.joining import ListeningHead
from parallax_core.deploy.deployment import Deployment
from parallax_core.plugins.host import PluginHost

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


@pytest.mark.parametrize(("dtype", "size"), [("auto", 2), ("float32", 4), ("bfloat16", 2)])
def test_model_takes_what_its_dtype_takes(plugins: PluginHost, tmp_path: Path, dtype: DType, size: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    demand = measure_model(plugins, tmp_path, dtype)
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
