from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_cluster.placement.cost_model import CostModel
from parallax_cluster.placement.stage_table import Effort
from parallax_cluster.placement.variants import NEXT, VariantFinder
from tests.support.clusters import make_problem


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 16))
def test_variants_differ_and_the_first_has_memory_for_most_requests(seed: int, most: int) -> None:
    costs = CostModel(make_problem(seed, 3))
    order = tuple(range(len(costs.nodes)))
    found = list(VariantFinder(costs, Effort(1000)).list_all(order, most, share=NEXT))
    assert len({(each.order, each.cuts) for each in found}) == len(found)
    assert all(each.num_fitting >= 1 for each in found)
    if any(each.num_fitting >= most for each in found):
        assert found[0].num_fitting >= most


def test_finding_variants_takes_effort() -> None:
    effort = Effort(1000)
    VariantFinder(CostModel(make_problem(2, 3)), effort).find_few((0, 1), 8)
    assert effort.left < 1000
