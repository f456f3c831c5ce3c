"""The search beside simple layouts of large fleets; `large_fleets` prints the figures."""

from __future__ import annotations

import pytest

from plugins.cluster.tests.placement.large_fleets import NUM_FLEETS, compare, make_fleet


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(NUM_FLEETS))
def test_search_reaches_what_simple_layouts_do(seed: int) -> None:
    compared = compare(make_fleet(seed))
    assert compared.share >= 0.97, compared
    assert compared.most_help <= 0.01, compared
