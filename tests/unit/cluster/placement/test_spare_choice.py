from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.cluster.placement.spare_choice import choose_spare


def test_first_spare_is_for_the_stage_whose_loss_costs_most() -> None:
    assert choose_spare({"small": 1.0, "large": 3.0}, Counter()) == "large"


def test_first_of_equals_gets_the_spare() -> None:
    assert choose_spare({"a": 2.0, "b": 2.0}, Counter()) == "a"


@given(
    st.dictionaries(st.integers(0, 9), st.floats(1, 1e12), min_size=1, max_size=6),
    st.integers(1, 20),
)
def test_spares_are_dealt_out_in_proportion_to_the_costs(costs: dict[int, float], size: int) -> None:
    spares: Counter[int] = Counter()
    for _ in range(size):
        spares[choose_spare(costs, spares)] += 1
    for kind, number in spares.items():
        for other, cost in costs.items():  # no kind would have needed the spare of another more
            assert costs[kind] / number >= cost / (spares[other] + 1)
