from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from parallax_cluster.cli.model_list import SHIPPED
from tests.unit.cli.command_here import run_here

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
NODES = """
[[nodes]]
name = "desk"
device = "RTX3060"

[[nodes]]
name = "mini"
device = "M4"

[[nodes]]
name = "pi"
memory_gb = 0.3
tflops = 0.05
bandwidth_gb_s = 10
"""

LARGE = """
[[nodes]]
name = "rack"
memory_gb = 4000
tflops = 1000
bandwidth_gb_s = 8000
"""
"""A node on which every published model fits."""
MODELS: list[dict[str, Any]] = json.loads(SHIPPED.read_text(encoding="utf-8"))["models"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "nodes.toml").write_text(NODES)
    return tmp_path


def run_plan(folder: Path, *options: str, nodes: str = "nodes.toml") -> subprocess.CompletedProcess[str]:
    return run_here("cluster", "plan", str(folder), "--nodes", str(folder / nodes), *options)


def read_plans(folder: Path, *options: str) -> list[dict[str, Any]]:
    done = run_plan(folder, "--json", *options)
    assert done.returncode == 0, done.stderr
    plans: list[dict[str, Any]] = json.loads(done.stdout)["plans"]
    return plans


def test_plan_without_weights_names_layers_speed_limit_and_idle_nodes(folder: Path) -> None:
    done = run_plan(folder)
    assert done.returncode == 0, done.stderr
    for words in (
        "weights: 15.3 GiB as stored; --backend NAME counts what a backend loads",
        "PIPELINE  NODE",
        "predicted",
        "tokens/s, first token after",
        "memory bandwidth of",
        "idle       pi: ",
    ):
        assert words in done.stdout


def test_json_has_the_whole_placement(folder: Path) -> None:
    [plan] = read_plans(folder)
    [pipeline] = plan["pipelines"]
    assert [stage["node"] for stage in pipeline["stages"]] == ["mini", "desk"]
    assert [stage["layers"] for stage in pipeline["stages"]][-1][1] == 36
    assert sum(stage["weights_bytes"] for stage in pipeline["stages"]) == pytest.approx(16.4e9, rel=0.01)
    assert plan["idle"][0]["node"] == "pi"
    assert plan["tokens_per_s_range"] == pytest.approx([plan["tokens_per_s"] / 1.5, plan["tokens_per_s"] * 1.5])
    assert [stage["figures"] for stage in pipeline["stages"]] == ["typical", "typical"]
    assert plan["tokens_per_s"] > 10


def test_changes_add_up_and_are_compared(folder: Path) -> None:
    plans = read_plans(folder, "--what-if", "+1xRTX4090@20ms", "--what-if=-mini")
    assert [plan["what_if"] for plan in plans] == [None, "+1xRTX4090@20ms", "-mini"]
    assert plans[1]["tokens_per_s"] > 3 * plans[0]["tokens_per_s"]
    assert "times the tokens/s" in run_plan(folder, "--what-if", "+1xRTX4090@20ms").stdout


def test_purchases_are_compared_each_alone(folder: Path) -> None:
    changes = ("--compare", "+RTX 4090@1gbe", "--compare=-mini, +T4", "--compare", "desk=48gb")
    done = run_plan(folder, "--json", *changes)
    compared = json.loads(done.stdout)["compared"]
    assert [plan["what_if"] for plan in compared] == ["+RTX 4090@1gbe", "-mini, +T4", "desk=48gb"]
    text = run_plan(folder, *changes).stdout
    ranked = text[text.index("CHANGE ") :].splitlines()[1:]
    assert ranked[0].startswith("+RTX 4090@1gbe ")
    assert {line.split("  ")[0] for line in ranked} == {"as it is", *(plan["what_if"] for plan in compared)}


def test_unknown_family_is_planned_by_its_size(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["Abacus"]}))
    done = run_plan(folder)
    assert "--params 24B --layers 40" in done.stderr
    [dense] = read_plans(folder, "--params", "8B", "--layers", "32", "--weight-bits", "8")
    stages = dense["pipelines"][0]["stages"]
    assert sum(stage["weights_bytes"] for stage in stages) == pytest.approx(8e9, rel=0.001)
    [sparse] = read_plans(folder, "--params", "8B", "--layers", "32", "--weight-bits", "8", "--active", "1B")
    assert sparse["tokens_per_s"] > 1.2 * dense["tokens_per_s"]
    for options, message in (
        (("--params", "8B"), "--layers is missing"),
        (("--layers", "8"), "--params is missing"),
        (("--params", "many", "--layers", "8"), "--params is 'many'"),
    ):
        done = run_plan(folder, *options)
        assert done.returncode == 2
        assert f"error: {message}" in done.stderr


def test_size_comes_from_the_index_unless_bits_are_given(folder: Path) -> None:
    assert [plan["fits"] for plan in read_plans(folder, "--weight-bits", "4")] == [True]
    index: dict[str, dict[str, int]] = {"metadata": {"total_size": 5 * 10**9}, "weight_map": {}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    [plan] = read_plans(folder)
    assert sum(stage["weights_bytes"] for stage in plan["pipelines"][0]["stages"]) == pytest.approx(5e9, rel=0.01)


def test_policy_and_objective_are_chosen(folder: Path) -> None:
    nodes = "[[nodes]]\nname = 'a'\ncount = 2\ndevice = 'RTX4090'\n"
    (folder / "two.json").write_text(json.dumps({"nodes": [{"name": "a", "count": 2, "device": "RTX4090"}]}))
    (folder / "nodes.toml").write_text(nodes)
    assert len(read_plans(folder, "--placement", "search:effort=50", "--concurrency", "16")[0]["pipelines"]) == 2
    assert read_plans(folder, "--placement", "greedy:param_mem_ratio=0.9")[0]["pipelines"]
    assert run_plan(folder, nodes="two.json").stdout == run_plan(folder).stdout
    [plan] = read_plans(folder, "--objective", "latency", "--concurrency", "1")
    assert plan["num_requests"] == 1


def test_model_that_does_not_fit_is_an_error_with_the_figures(folder: Path) -> None:
    (folder / "nodes.toml").write_text("[[nodes]]\nname = 'a'\ndevice = 'M1'\nmemory_gb = 8\n")
    done = run_plan(folder)
    assert done.returncode == 1
    assert "error: the model does not fit: the model needs 15.3 GiB for its weights and " in done.stderr
    assert "and there is one node, with 7.5 GiB; layers " in done.stderr
    assert "hint: with 6.5 bits per weight it would fit, in 6.2 GiB; or add nodes" in done.stderr
    assert "it would not fit with 3 bits per weight either" in run_plan(folder, "--context", "400000").stderr
    assert run_plan(folder, "--what-if", "+RTX4090").returncode == 0


def test_nodes_that_do_not_reach_each_other_are_named(folder: Path) -> None:
    nodes = "".join(f"[[nodes]]\nname = '{name}'\ndevice = 'M1'\nmemory_gb = 12\n" for name in "ab")
    (folder / "nodes.toml").write_text(f"[network]\nunreachable = [['a', 'b']]\n{nodes}")
    assert [stage["node"] for stage in read_plans(folder)[0]["pipelines"][0]["stages"]] == ["b", "a"]
    (folder / "nodes.toml").write_text(f"[network]\nunreachable = [['a', 'b'], ['b', 'a']]\n{nodes}")
    done = run_plan(folder)
    assert done.returncode == 1
    assert "a stage has to reach the next one: a does not reach b; b does not reach a" in done.stderr
    assert "hint: have them reach each other" in done.stderr


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ((), "[[nodes]]\nname = 'a'\nmemory_gb = 'x'\n", "error: nodes[0].memory_gb: Expected"),
        ((), "[[nodes]\n", "is not valid TOML"),
        ((), "", "error: "),
        (("--objective", "speed"), NODES, "error: --objective is 'speed'"),
        (("--what-if", "4090"), NODES, "error: '4090' is not a change"),
        (("--placement", "random"), NODES, "no placement policy named 'random'"),
        (("--placement", "search:effort=x"), NODES, "option 'effort' is 'x'"),
    ],
)
def test_wrong_input_is_a_clear_error(folder: Path, options: tuple[str, ...], text: str, message: str) -> None:
    (folder / "nodes.toml").write_text(text)
    done = run_plan(folder, *options)
    assert done.returncode == 2 or "no placement policy" in message
    assert message in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_architecture_and_missing_file_are_clear_errors(folder: Path) -> None:
    assert "cannot be read" in run_plan(folder, nodes="other.toml").stderr
    (folder / "config.json").write_text(json.dumps(CONFIG | {"architectures": ["Abacus"]}))
    done = run_plan(folder)
    assert "no installed plugin knows the architecture" in done.stderr
    assert "Abacus" in done.stderr


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_plan_weighs_a_published_model_as_its_authors_do(model: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(model["config"]))
    (tmp_path / "nodes.toml").write_text(LARGE)
    [plan] = read_plans(tmp_path, "--weight-bits", "16", "--concurrency", "1")
    weights = sum(stage["weights_bytes"] for pipeline in plan["pipelines"] for stage in pipeline["stages"])
    assert weights / 2 == pytest.approx(float(model["params"].removesuffix("B")) * 1e9, rel=0.01)
