"""Compares placements with those that Helix's solver found, on its published clusters and scored by its flow model.

    python -m benchmarks.helix --out benchmarks/results/helix.json

The clusters, the speeds and Helix's placements are in benchmarks/data/helix.json, which names its source. Everything is
simulated: the score of a placement is the most flow through it (Mei et al., "Helix", ASPLOS 2025, section 4): a node is
an edge whose capacity is its tokens per second with its number of layers, and a link goes from a node to each whose
layers begin where its own end. The score of Helix's own placement must be the objective that its solver printed. Ours
are found by two searches, with the tables of Helix in place of our cost model: ``alone`` is the ``search`` policy,
where a node serves one pipeline, and ``shared`` is `plan_shared`, where several may lead through a node, as in Helix.
The goals for the better of them are a share of 1.00 in at most 10 seconds of CPU time for both, at least 0.95,
and exactly the optimum where the solver proved one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, make_parser, write_report
from parallax_cluster.placement.cost_model import CostModel, PipelineCost
from parallax_cluster.placement.flow import FlowGraph
from parallax_cluster.placement.policy import search_pipelines
from parallax_cluster.placement.search import LayoutSearch
from parallax_cluster.placement.seeds import order_nodes
from parallax_cluster.placement.shared import Rates, plan_shared
from parallax_core.contracts.placement import (
    ClusterProfile,
    DeviceProfile,
    LayerDemand,
    LinkProfile,
    ModelDemand,
    NodeProfile,
    PlacementProblem,
    ServingGoal,
)

DATA = Path(__file__).parent / "data/helix.json"
EFFORT = 200_000
"""Forty times the default: these searches may take seconds."""
SHARED_EFFORT = 300
GOAL, FLOOR, GOAL_S = 1.0, 0.95, 10.0
NEAR = 1e-6
"""Scores that differ by a smaller share are equal."""
Ranges = list[tuple[int, int] | None]


SOURCE, SINK = ("source", 0), ("sink", 0)


def score_ranges(cluster: dict[str, Any], ranges: Iterable[tuple[int, int] | None]) -> float:
    """Return the tokens per second of a placement.

    Args:
        cluster: of benchmarks/data/helix.json.
        ranges: the first layer of each node and the one after its last; None: it is idle.
    """
    graph, placed = FlowGraph(SOURCE, SINK), [(node, *found) for node, found in enumerate(ranges) if found]
    for node, start, stop in placed:
        graph.add(("into", node), ("from", node), find_speed(cluster, node, stop - start))
        if start == 0:
            graph.add(SOURCE, ("into", node), _find_edge(cluster, 0, node))
        if stop == cluster["layers"]:
            graph.add(("from", node), SINK, _find_edge(cluster, 1, node))
        for other, begin, _ in placed:
            if begin == stop:
                graph.add(("from", node), ("into", other), find_link(cluster, node, other))
    return graph.find_most()


def find_speed(cluster: dict[str, Any], node: int, num_layers: int) -> float:
    return float(cluster["tokens_per_s"][cluster["types"][node]][num_layers - 1])


def find_link(cluster: dict[str, Any], one: int, other: int) -> float:
    links = cluster["links"]
    return float(links[max(one, other)][min(one, other)] if isinstance(links, list) else links)


def _find_edge(cluster: dict[str, Any], side: int, node: int) -> float:
    edges = cluster["edges"]
    return float(edges[side][node] if isinstance(edges, list) else edges)


class TableCosts(CostModel):
    """Costs of a cluster of Helix: a stage is as fast as its table says, however many requests are in a step."""

    def __init__(self, cluster: dict[str, Any]) -> None:
        super().__init__(_make_problem(cluster))
        self._cluster = cluster
        self._held = [len(cluster["tokens_per_s"][name]) for name in cluster["types"]]

    def price_stage(self, num_stages: int, num_requests: int) -> Callable[[int, int, int], float]:
        del num_stages, num_requests

        def price(node: int, start: int, stop: int) -> float:
            held = min(stop - start, self._held[node])  # more is only asked to compare nodes
            return (stop - start) / held / find_speed(self._cluster, node, held)

        return price

    def measure_pipeline(self, order: Sequence[int], cuts: Sequence[int], num_requests: int) -> PipelineCost:
        price = self.price_stage(len(order), num_requests)
        stage_s = tuple(price(node, *cut) for node, cut in zip(order, pairwise(cuts), strict=True))
        link_s = tuple(1 / find_link(self._cluster, *ends) for ends in pairwise(order))
        rate, way_s = 1 / max(*stage_s, *link_s, 0.0), sum(stage_s) + sum(link_s)
        return PipelineCost(num_requests, rate, way_s, 0.0, num_requests / rate + way_s, stage_s, link_s)


def _make_problem(cluster: dict[str, Any]) -> PlacementProblem:
    """Return the problem with a byte for each layer, and as many bytes of memory as a node holds layers."""
    types, links = cluster["types"], cluster["links"]
    held = [len(cluster["tokens_per_s"][name]) for name in types]
    nodes = tuple(
        NodeProfile(name=str(rank), device=DeviceProfile(memory=number, flops=1, bandwidth=1))
        for rank, number in enumerate(held)
    )
    named = tuple(
        LinkProfile(ends=(str(one), str(other)), round_trip_s=1 / speed, bandwidth=speed)
        for one, row in enumerate(links if isinstance(links, list) else ())
        for other, speed in enumerate(row)
    )
    layers = (LayerDemand(weights=1, read=1, flops=1),) * cluster["layers"]
    return PlacementProblem(
        cluster=ClusterProfile(nodes=nodes, links=named),
        model=ModelDemand(layers=layers, hidden=1),
        goal=ServingGoal(concurrency=16),
    )


def place(cluster: dict[str, Any]) -> Ranges:
    search = LayoutSearch(TableCosts(cluster), EFFORT, seed=0)
    ranges: Ranges = [None] * len(cluster["types"])
    for pipeline in search_pipelines(search)[0]:
        for node, cut in zip(pipeline.order, pairwise(pipeline.cuts), strict=True):
            ranges[node] = cut
    return ranges


def share(cluster: dict[str, Any]) -> Ranges:
    costs, nodes = TableCosts(cluster), range(len(cluster["types"]))

    def pass_through(node: int, start: int, stop: int) -> float:
        most = len(cluster["tokens_per_s"][cluster["types"][node]])
        return find_speed(cluster, node, stop - start) if stop - start <= most else 0.0

    rates = Rates(num_layers=cluster["layers"], node=pass_through, link=partial(find_link, cluster))
    plan = plan_shared(rates, [order_nodes(costs, nodes)], SHARED_EFFORT)
    return [plan.held.get(node) for node in nodes]


def compare(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of both placements of a cluster, and the seconds of CPU time of ours.

    Raises:
        SystemExit: if the flow model does not give the solver's objective for its own placement.
    """
    theirs = score_ranges(cluster, (tuple(each) if each else None for each in cluster["placement"]))
    if abs(theirs - cluster["milp"]) > NEAR * theirs:
        sys.exit(f"{cluster['name']}: the flow of Helix's placement is {theirs}, and its solver says {cluster['milp']}")
    ours, seconds = dict[str, Any](), 0.0
    for name, search in (("alone", place), ("shared", share)):
        began = time.process_time()
        ranges = search(cluster)
        taken = time.process_time() - began
        seconds += taken
        ours[name] = {"tokens_per_s": score_ranges(cluster, ranges), "seconds": taken, "ranges": ranges}
    return {
        "name": cluster["name"],
        "helix_tokens_per_s": theirs,
        **ours,
        "share": max(ours["alone"]["tokens_per_s"], ours["shared"]["tokens_per_s"]) / theirs,
        "seconds": seconds,
        "is_proved_optimal": cluster["is_proved_optimal"],
    }


def main(arguments: Sequence[str]) -> None:
    """Compare the placements of all clusters, print the scores, and write the report."""
    parser = make_parser(__doc__)
    out = parser.parse_args(arguments).out
    data = json.loads(DATA.read_text())
    rows = [compare(cluster) for cluster in data["clusters"]]
    for row in rows:
        print(
            f"{row['name']:34} Helix {row['helix_tokens_per_s']:7.1f}  alone {row['alone']['tokens_per_s']:7.1f}  "
            f"shared {row['shared']['tokens_per_s']:7.1f} tokens/s  {row['share']:.3f}  {row['seconds']:.1f} s"
        )
    missed = [row["name"] for row in rows if row["share"] < FLOOR - NEAR or row["seconds"] > GOAL_S]
    below = [row["name"] for row in rows if row["share"] < GOAL - NEAR and row["name"] not in missed]
    print(f"below {FLOOR}: {'; '.join(missed) or 'none'}; below {GOAL}: {'; '.join(below) or 'none'}")
    write_report(
        out, {**describe_run(["benchmarks.helix"]), "source": data["source"], "is_simulated": True, "clusters": rows}
    )


if __name__ == "__main__":
    main(sys.argv[1:])
