"""Writes placed stages as rows of plain values, for files and for standbys."""

from __future__ import annotations

from parallax_core.api import LayerRange, PlacedStage, StageLease

StageRow = tuple[str, int, int, int, int, int, float]
"""The node, its first layer and the one after its last; the number of the lease (-1: none), the same two layers of what
the node holds, and the share of its memory."""
NO_LEASE = -1


def write_row(stage: PlacedStage) -> StageRow:
    """Return a placed stage as a row."""
    lease, holds = stage.lease, stage.holds
    number, share = (lease.number, lease.memory_share) if lease is not None else (NO_LEASE, 1.0)
    return stage.node, stage.layers.start, stage.layers.stop, number, holds.start, holds.stop, share


def read_row(row: StageRow) -> PlacedStage:
    """Return the placed stage of a row."""
    node, start, stop, number, first, end, share = row
    lease = StageLease(number, LayerRange(first, end), share) if number != NO_LEASE else None
    return PlacedStage(node, LayerRange(start, stop), lease)
