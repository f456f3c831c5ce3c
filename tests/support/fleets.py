"""Fleets that users of other systems reported, with the model they served and what they measured.

Memory and bandwidth are those of the makers' data sheets, and efficiencies are typical (`devices.py`); a report that
names the free memory counts before the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax_cluster.placement.nodes_file import read_cluster
from parallax_core.contracts.placement import (
    ClusterProfile,
    LayerDemand,
    ModelDemand,
    Objective,
    PlacementProblem,
    ServingGoal,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """A reported fleet."""

    source: str
    report: str
    """What its users measured."""
    cluster: ClusterProfile
    model: ModelDemand

    def make_problem(self, concurrency: int, objective: Objective = "latency") -> PlacementProblem:
        """Return the problem with requests of 512 + 256 tokens."""
        goal = ServingGoal(concurrency=concurrency, objective=objective)
        return PlacementProblem(cluster=self.cluster, model=self.model, goal=goal)


def _make_model(num_layers: int, gigabytes: float, kv: int, active: float = 1.0) -> ModelDemand:
    """Return a model of equal layers; ``active`` is the share of the weights that a token meets."""
    size = int(gigabytes * 1e9 / num_layers)
    layer = LayerDemand(weights=size, read=int(size * active), flops=int(2 * size * active), kv=kv)
    return ModelDemand(layers=(layer,) * num_layers, hidden=8192)


def _make_cluster(rtt_ms: float, mbit_s: float, *nodes: tuple[str, float, float, float]) -> ClusterProfile:
    """Return a cluster of nodes with a name, free memory in GB, TFLOPS and GB/s."""
    entries = [
        {"name": name, "memory_gb": memory, "tflops": tflops, "bandwidth_gb_s": bandwidth, "layer_ms": 0.02}
        | {"flops_efficiency": 0.5, "bandwidth_efficiency": 0.75, "step_ms": 0.5}
        for name, memory, tflops, bandwidth in nodes
    ]
    return read_cluster({"nodes": entries, "network": {"rtt_ms": rtt_ms, "mbit_s": mbit_s}})


TWO_LAPTOPS = Fleet(
    source="github.com/exo-explore/exo/issues/2070",
    report="gpt-oss-120b: 80 tokens/s on either laptop, 68 on both by pipeline over TCP, 48 by tensors over RDMA",
    cluster=_make_cluster(0.3, 20_000, ("M4 Max", 115, 18.4, 546), ("M5 Max", 115, 20, 614)),
    model=_make_model(36, 63, 2048, active=5.1 / 117),
)
MAC_AND_MINI = Fleet(
    source="github.com/exo-explore/exo/issues/489",
    report="Llama-3.2-3B: 40 tokens/s on the MacBook Pro, 20 on the Mac mini, 24 on both",
    cluster=_make_cluster(4, 300, ("MacBook Pro", 24, 8.5, 273), ("Mac mini", 12, 4.3, 120)),
    model=_make_model(28, 3.4, 4096),
)
HOME_OF_FOUR = Fleet(
    source="github.com/Lizonghang/prima.cpp, table 1 (D1 to D4)",
    report="Llama-3-8B: 15 ms per token on the desktop alone, 54 on all four; 70B: 674 ms, with weights read from disk",
    cluster=_make_cluster(
        4,
        300,
        ("M1", 2.4 * 1.07, 2.6, 68),
        ("laptop 3070", 8 * 1.07, 40.6, 448),
        ("desktop 2080Ti", 11 * 1.07, 53.8, 616),
        ("phone", 1.9 * 1.07, 0.1, 30),
    ),
    model=_make_model(32, 4.7, 4096),
)
WIFI_TRIO = Fleet(
    source="github.com/Mesh-LLM/mesh-llm, docs/BENCHMARKS.md",
    report="GLM-4.7-Flash in 4 bits: 68 tokens/s on the M4 Max, 21 and 16 on two Macs, 12 to 13 on three; "
    "the third is not described and counts as another mini",
    cluster=_make_cluster(
        4, 300, ("M4 Max", 55, 18.4, 546), ("Mac mini", 12, 4.3, 120), ("another Mac mini", 12, 4.3, 120)
    ),
    model=_make_model(47, 16.9, 1152, active=3.6 / 30),
)
FLEETS = (TWO_LAPTOPS, MAC_AND_MINI, HOME_OF_FOUR, WIFI_TRIO)
