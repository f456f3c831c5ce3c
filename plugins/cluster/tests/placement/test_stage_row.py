from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.placement.stage_row import NO_LEASE, read_row, write_row
from parallax_core.contracts.placement import PlacedStage, StageLease
from parallax_core.contracts.stage import LayerRange

ranges = st.builds(LayerRange, st.integers(0, 200), st.integers(1, 200))
leases = st.builds(StageLease, st.integers(0, 99), ranges, st.floats(0, 1, exclude_min=True))
stages = st.builds(PlacedStage, st.text(), ranges, st.none() | leases)


@given(stages)
def test_row_is_read_as_it_was_written(stage: PlacedStage) -> None:
    row = write_row(stage)
    assert read_row(row) == stage
    node, *numbers = json.loads(json.dumps(row))
    assert read_row((node, *numbers)) == stage


def test_row_of_a_stage_that_shares_nothing_names_the_layers_that_the_node_holds() -> None:
    assert write_row(PlacedStage("a/1", LayerRange(3, 9))) == ("a/1", 3, 9, NO_LEASE, 3, 9, 1.0)
    leased = PlacedStage("a/1", LayerRange(3, 9), StageLease(0, LayerRange(0, 12), 0.25))
    assert write_row(leased) == ("a/1", 3, 9, 0, 0, 12, 0.25)
