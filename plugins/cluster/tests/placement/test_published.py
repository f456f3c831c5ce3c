"""Predictions for devices of the table, beside speeds that others have published."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from parallax_cluster.cli.model_list import SHIPPED
from parallax_cluster.placement.demand import measure_demand
from parallax_cluster.placement.estimate import PlacementEstimator
from parallax_cluster.placement.nodes_file import read_cluster
from parallax_core.api import LoadedSize, ModelDemand
from parallax_core.api.deployment import PluginHost, find_family
from parallax_core.contracts.model import LayerShape, ModelShape
from parallax_core.contracts.placement import Estimate, PlacedStage, Placement, PlacementProblem, ServingGoal
from parallax_core.contracts.stage import LayerRange

DATA = json.loads((Path(__file__).parents[4] / "benchmarks/data/published-speeds.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = DATA["rows"]
EXPERTS: list[dict[str, Any]] = DATA["experts"]
MODELS = json.loads(SHIPPED.read_text(encoding="utf-8"))["models"]
CONFIGS = {each["name"]: each["config"] for each in MODELS}
FLEETS: list[dict[str, Any]] = DATA["fleets"]
PROMPTS = [row for row in ROWS if "prompt_tokens_per_s" in row and "gpus" not in row]
"""Where there are several devices, a lone prompt is on all at once here, and with llama.cpp from four on."""
GOAL = ServingGoal(concurrency=1, prompt_tokens=512, output_tokens=512)
NEAR, FAR, FLEETS_FAR = 1.15, 1.5, 1.9
"""How many times off half of the predictions may be, and any."""


def make_shape(hidden: int, mlp: int, heads: int, layers: int) -> ModelShape:
    """Return the shape of a Llama 3."""
    kv_width, vocab = 2 * 8 * 128, 128_256
    weights = 2 * hidden * hidden + hidden * kv_width + 3 * hidden * mlp
    layer = LayerShape(kind="full", weights=weights, active_weights=weights, kv_width=kv_width)
    return ModelShape(
        hidden_size=hidden,
        vocab_size=vocab,
        context_length=8192,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        layers=(layer,) * layers,
        before_weights=vocab * hidden,
        after_weights=vocab * hidden,
        is_tied=False,
    )


def read_shape(name: str) -> ModelShape:
    """Return the shape of a published model."""
    family = find_family(PluginHost.prepare(), CONFIGS[name])
    assert family is not None
    return family.adapter.read_shape(CONFIGS[name])


def measure(row: dict[str, Any]) -> ModelDemand:
    """Return what the model of a row takes."""
    if "model" in row:
        return measure_demand(make_shape(**DATA["models"][row["model"]]), row["bits"] / 8)
    shape, item, expert = read_shape(row["config"]), row["bits"] / 8, row["expert_bits"] / 8
    experts = [round(layer.expert_weights * expert) for layer in shape.layers]
    others = [round((layer.weights - layer.expert_weights) * item) for layer in shape.layers]
    ends = round(shape.before_weights * item), round(shape.after_weights * item)
    totals = tuple(map(sum, zip(experts, others, strict=True)))
    return measure_demand(shape, size=LoadedSize(layers=totals, experts=tuple(experts), before=ends[0], after=ends[1]))


def predict(row: dict[str, Any]) -> float:
    """Return the tokens per second of one request after its first token."""
    return 1 / estimate(row).token_s


def predict_prompt(row: dict[str, Any]) -> float:
    """Return the tokens of a prompt per second until the first token of its answer."""
    return GOAL.prompt_tokens / estimate(row).ttft_s


def estimate(row: dict[str, Any]) -> Estimate:
    demand, names = measure(row), [row["device"]] * row.get("machines", 1) + row.get("others", [])
    nodes = [{"name": f"{rank}", "device": name, "memory_gb": 1000} for rank, name in enumerate(names)]
    nodes[0]["gpus"] = row.get("gpus", 1)
    cluster = read_cluster({"nodes": nodes, **({"network": {"kind": row["link"]}} if "link" in row else {})})
    problem, num_layers = PlacementProblem(cluster=cluster, model=demand, goal=GOAL), len(demand.layers)
    num = len(cluster.nodes)
    cuts = [round(rank * num_layers / num) for rank in range(num + 1)]
    stages = tuple(
        PlacedStage(node.name, LayerRange(*cut)) for node, cut in zip(cluster.nodes, pairwise(cuts), strict=True)
    )
    return PlacementEstimator(problem).estimate(Placement((stages,)))


@pytest.mark.parametrize("row", [*ROWS, *EXPERTS], ids=lambda row: "-".join(map(str, list(row.values())[:4])))
def test_prediction_is_near_what_was_published(row: dict[str, Any]) -> None:
    assert row["source"] in DATA["sources"]
    assert 1 / FAR < predict(row) / row["tokens_per_s"] < FAR


@pytest.mark.parametrize("row", PROMPTS, ids=lambda row: "-".join(map(str, list(row.values())[:4])))
def test_prediction_of_prompts_is_near_what_was_published(row: dict[str, Any]) -> None:
    assert 1 / FAR < predict_prompt(row) / row["prompt_tokens_per_s"] < FAR


@pytest.mark.parametrize("row", FLEETS, ids=lambda row: "-".join(map(str, list(row.values())[:4])))
def test_prediction_of_a_fleet_of_machines_is_near_what_was_published(row: dict[str, Any]) -> None:
    """Other systems add what they take for each hop, which is not known; so none may be predicted slower by far."""
    assert row["source"] in DATA["sources"]
    assert 1 / NEAR < predict(row) / row["tokens_per_s"] < FLEETS_FAR


def test_most_prompts_are_nearer() -> None:
    ratios = [predict_prompt(row) / row["prompt_tokens_per_s"] for row in PROMPTS]
    assert median(max(ratio, 1 / ratio) for ratio in ratios) < NEAR
    assert 1 / NEAR < median(ratios) < NEAR


@pytest.mark.parametrize("half", [0, 1])
def test_most_are_nearer(half: int) -> None:
    ratios = [predict(row) / row["tokens_per_s"] for row in ROWS[half::2]]
    assert median(max(ratio, 1 / ratio) for ratio in ratios) < NEAR
    assert 1 / NEAR < median(ratios) < NEAR


def test_most_with_experts_are_nearer() -> None:
    """The fixed time of layers with experts was chosen by the even rows; their own median is not as near."""
    ratios = [predict(row) / row["tokens_per_s"] for row in EXPERTS[1::2]]
    assert median(max(ratio, 1 / ratio) for ratio in ratios) < NEAR
    assert 1 / NEAR < median(ratios) < NEAR
