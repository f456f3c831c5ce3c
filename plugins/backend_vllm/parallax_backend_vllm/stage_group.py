"""Stands in for vLLM's pipeline-parallel group, so that a process holds one range of layers."""

from __future__ import annotations

from typing import Any

from parallax_core.api import LayerRange


class StageGroup:
    """A pipeline group of up to three ranks: the layers before, ours, and those after; only ours exists.

    vLLM asks its pipeline group for the layers that a process holds, and whether it embeds tokens or computes logits.
    Nothing is sent by it: hidden states are arguments and results of a step.

    Args:
        layers: the layers of the stage.
        num_layers: the number of layers of the model.
    """

    def __init__(self, layers: LayerRange, num_layers: int) -> None:
        sizes = layers.start, len(layers), num_layers - layers.stop
        self.partition = [size for size in sizes if size]
        """The number of layers of each rank."""
        self.rank_in_group = 1 if layers.start else 0
        self.world_size = len(self.partition)
        self.ranks = list(range(self.world_size))
        self.rank = self.rank_in_group
        self.is_first_rank = layers.start == 0
        self.is_last_rank = layers.stop == num_layers
        self.real: Any = None
        """vLLM's own group of one process, which answers everything else."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- an attribute of vLLM's group
        """Return an attribute of the group of one process."""
        return getattr(self.real, name)
