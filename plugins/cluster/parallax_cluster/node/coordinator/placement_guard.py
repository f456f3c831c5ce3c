"""Guards against a faulty placement policy; see `parallax_core.node.policy.guard`."""

from __future__ import annotations

from typing import cast

from parallax_cluster.placement.policy import SearchPlacement
from parallax_core.api import Estimator, Placement, PlacementPolicy, PlacementProblem
from parallax_core.api.deployment import PluginHost, PolicyGuard, read_policy


class PlacementGuard(PolicyGuard[PlacementPolicy]):
    """Places the model by search if the policy returns no valid placement."""

    def place(self, problem: PlacementProblem, estimator: Estimator) -> Placement:
        """Return the policy's answer, or that of `SearchPlacement`."""
        return self._call(
            lambda: self.policy.place(problem, estimator),
            lambda placement: _is_placement(placement, estimator),
            lambda: SearchPlacement().place(problem, estimator),
        )


def make_placement(host: PluginHost, text: str) -> PlacementGuard:
    """Return the placement policy that ``text`` describes, guarded; raises as `make_policy` does."""
    return PlacementGuard(cast("PlacementPolicy", read_policy(host, "placement", text)))


def _is_placement(answer: object, estimator: Estimator) -> bool:
    if not isinstance(answer, Placement):
        return False
    try:
        estimator.estimate(answer)
    except ValueError:
        return False
    return True
