"""What a node of a pipeline is to be."""

from __future__ import annotations

from dataclasses import dataclass

from parallax_core.base.ids import Epoch
from parallax_core.contracts.backend import DType
from parallax_core.contracts.stage import LayerRange
from parallax_core.node.executor.base import LEASE
from parallax_core.node.membership.registry import JoinedNode
from parallax_core.wire.membership import Assign


@dataclass(frozen=True, kw_only=True, slots=True)
class StageAssignment:
    """What a node is to be."""

    stage: int
    layers: LayerRange | None
    """None: the whole model."""
    model: str
    """As a user writes it."""
    backend: str = ""
    dtype: DType = "auto"
    device: str = ""
    memory_fraction: float = 0.5
    max_batch_tokens: int = 0
    max_running: int = 0
    heartbeat_s: float = 1.0
    load_timeout_s: float = 900.0
    """How long loading may say nothing of its progress."""
    node: str = ""
    """The node that is to have it; empty: any that can."""

    def assign(self, attempt: Epoch) -> Assign:
        """Return how it is said in the course of an attempt."""
        layers = self.layers or LayerRange(0, 0)
        return Assign(
            LEASE,
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
        )

    def fit(self, node: JoinedNode) -> int:
        """Return how well a node would do: 0, not at all; 2, it has just that loaded."""
        join, layers = node.join, self.layers or LayerRange(0, 0)
        if self.node:  # whatever it has: what it lacks it will say itself
            return int(node.name == self.node)
        if self.backend and self.backend not in join.backends:
            return 0
        return 2 if (join.model, join.start, join.stop) == (self.model, layers.start, layers.stop) else 1
