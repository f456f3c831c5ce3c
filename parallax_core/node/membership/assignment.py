"""Describes the stage a node is to load, and which nodes may load it."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.base.ids import Epoch
from parallax_core.cluster.failure_detector import MIN_TIMEOUT_S
from parallax_core.contracts.device import DType
from parallax_core.contracts.placement import StageLease
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.membership.joined_node import HeldLayers, JoinedNode
from parallax_core.wire.membership import Assign


@dataclass(frozen=True, kw_only=True, slots=True)
class StageAssignment:
    """A stage of a pipeline, and the options with which a node is to load it."""

    stage: int
    layers: LayerRange | None
    """None: the whole model."""
    model: str
    """The model's name as the user writes it."""
    backend: str = ""
    dtype: DType = "auto"
    device: str = ""
    memory_fraction: float = 0.5
    max_batch_tokens: int = 0
    max_running: int = 0
    heartbeat_s: float = 1.0
    min_timeout_s: float = MIN_TIMEOUT_S
    """Seconds of silence that never count as a loss of its node; see `FailureDetector`."""
    load_timeout_s: float = 900.0
    """Seconds without a progress report after which loading counts as hung."""
    node: str = ""
    """The node that gets the stage; empty: any suitable one."""
    lease: StageLease | None = None
    """The lease on a shared node; None: the whole node."""

    @property
    def holds(self) -> HeldLayers | None:
        """What its node has in memory once it is loaded; None: the whole model."""
        layers = self.lease.holds if self.lease is not None else self.layers
        return HeldLayers(self.model, layers) if layers is not None else None

    def assign(self, attempt: Epoch) -> Assign:
        """Return the message that assigns the stage, for ``attempt`` at building the pipeline."""
        layers, lease = self.layers or LayerRange(0, 0), self.lease
        return Assign(
            attempt,
            stage=self.stage,
            backend=self.backend,
            model=self.model,
            start=layers.start,
            stop=layers.stop,
            dtype=self.dtype,
            device=self.device,
            memory_fraction=self.memory_fraction,
            heartbeat_s=self.heartbeat_s,
            max_batch_tokens=self.max_batch_tokens,
            max_running=self.max_running,
            holds_start=lease.holds.start if lease is not None else 0,
            holds_stop=lease.holds.stop if lease is not None else 0,
            memory_share=lease.memory_share if lease is not None else 0.0,
        )

    def fit(self, node: JoinedNode) -> int:
        """Return how suitable a node is: 0 if not at all, 2 if it can load the stage, 3 if it has it loaded already.

        1 is for spares, which get the nodes that no stage waits for.
        """
        join, layers = node.join, self.layers or LayerRange(0, 0)
        if self.node:  # without looking at its backends: if one is missing, the node refuses and says so
            return 2 * (node.name == self.node)
        if self.backend and self.backend not in join.backends:
            return 0
        return 3 if (join.model, join.start, join.stop) == (self.model, layers.start, layers.stop) else 2
