"""The kit for placement policies. Subclass it as ``Test...``, and give the policy and an estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import islice, permutations

from parallax_core.contracts.placement import (
    ClusterProfile,
    DeviceProfile,
    Estimator,
    LayerDemand,
    LinkProfile,
    ModelDemand,
    NodeProfile,
    Placement,
    PlacementPolicy,
    PlacementProblem,
    ServingGoal,
)
from parallax_core.testing.policy import PolicyConformance
from parallax_core.testing.promise import broken

VALID = "Return a valid placement; one without pipelines if the model does not fit"
GB = 10**9


class PlacementConformance(PolicyConformance[PlacementProblem]):
    """Holds a placement policy to its contract."""

    estimator: Callable[[PlacementProblem], Estimator]
    """The class that predicts speeds, such as ``parallax_cluster.placement.estimate.PlacementEstimator``."""

    def list_cases(self) -> Sequence[PlacementProblem]:
        """Return problems: no node, one, several, sites, gaps, too small, layers that stay together, a placement."""
        unequal = [_make_node(f"node {rank}", (8, 16, 24, 6)[rank % 4], 100 + 150 * rank) for rank in range(7)]
        sites = [dataclasses.replace(node, site=f"site {rank % 2}") for rank, node in enumerate(unequal)]
        far = LinkProfile(ends=("site 0", "site 1"), round_trip_s=0.08, bandwidth=3e6)
        groups = [[], unequal[1:2], [_make_node(f"node {rank}", 12, 400) for rank in range(4)], unequal, sites]
        clusters = [ClusterProfile(nodes=tuple(nodes), links=(far,)) for nodes in groups]
        pairs = permutations((node.name for node in unequal), 2)
        parted = ClusterProfile(nodes=tuple(unequal), unreachable=frozenset(islice(pairs, 0, None, 2)))
        small = ClusterProfile(nodes=tuple(_make_node(f"node {rank}", 1, 400) for rank in range(3)))
        model = _make_model(12)
        goals = [ServingGoal(), ServingGoal(objective="latency", concurrency=2), ServingGoal(max_token_s=0.05)]
        problems = [
            PlacementProblem(cluster=cluster, model=model, goal=goals[rank % len(goals)])
            for rank, cluster in enumerate([*clusters, small, parted])
        ]
        whole = dataclasses.replace(model, borders=(8192, 0, 0, 4096, 0, 0, 8192, 0, 0, 8192, 2048))
        joined = [dataclasses.replace(each, model=whole) for each in problems]
        return [*problems, *joined, dataclasses.replace(problems[3], current=Placement())]

    def ask(self, policy: PlacementPolicy, case: PlacementProblem) -> Placement:
        """Return the placement."""
        return policy.place(case, self.estimator(case))

    def test_placement_is_valid(self) -> None:
        """Every pipeline has all layers in order, no node twice, memory that suffices, and links from node to node."""
        for policy in self.make_policies():
            for case in self.list_cases():
                answer = self.ask(policy, case)
                assert isinstance(answer, Placement), broken(f"{policy!r} answers {answer!r}", VALID)
                try:
                    self.estimator(case).estimate(answer)
                except ValueError as error:
                    raise AssertionError(broken(f"{policy!r} answers {answer!r}: {error}", VALID)) from error


def _make_node(name: str, memory_gb: int, bandwidth_gb_s: int) -> NodeProfile:
    device = DeviceProfile(memory=memory_gb * GB, flops=0.1e12 * bandwidth_gb_s, bandwidth=bandwidth_gb_s * GB)
    return NodeProfile(name=name, device=device)


def _make_model(num_layers: int) -> ModelDemand:
    layer = LayerDemand(weights=GB, read=GB, flops=GB, context_flops=16384, kv=4096)
    return ModelDemand(layers=(layer,) * num_layers, hidden=8192)
