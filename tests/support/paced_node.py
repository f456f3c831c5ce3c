"""Runs a node whose toy takes as long for each step as a device would: ``python -m tests.support.paced_node PLAN``.

PLAN is a `PacedPlan` as JSON. SIGUSR2 makes the device `PacedPlan.slowdown` times slower, and as fast as before again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

from parallax_core.api import DeviceProfile, LayerDemand, ModelDemand, StageBatch
from parallax_core.base import log
from parallax_core.base.processes import end_with_parent
from parallax_core.contracts.progress import Progress
from parallax_core.testing.node import NodePlan, open_toy, serve_head
from parallax_core.testing.toy import ToyStage
from parallax_core.wire.membership import Assign


class PacedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the process, from its command line."""

    node: NodePlan
    device: DeviceProfile
    model: ModelDemand
    """What a layer of the toy stands for."""
    slowdown: float = 4.0


def time_batch(device: DeviceProfile, layers: Sequence[LayerDemand], batch: StageBatch) -> float:
    """Return the seconds that a device takes for a batch."""
    tokens = sum(len(row.tokens) for row in batch.rows)
    draws = sum(len(row.outputs) for row in batch.rows)
    flops = read = 0.0
    for layer in layers:
        unused = (1 - layer.num_active_experts / layer.num_experts) ** tokens if layer.num_experts else 1.0
        flops += tokens * layer.flops + draws * layer.draw_flops
        read += layer.read + layer.experts * (1 - unused)
        for row in batch.rows:
            stop = row.start + len(row.tokens)
            flops += layer.context_flops * (stop * (stop + 1) - row.start * (row.start + 1)) / 2
            read += layer.kv * stop
    return max(flops / device.flops, read / device.bandwidth) + device.step_s + device.layer_s * len(layers)


class PacedDevice:
    """A device that may become slow."""

    def __init__(self, plan: PacedPlan) -> None:
        self._plan = plan
        self._factor = 1.0

    def toggle(self) -> None:
        """Become slow, or as fast as before."""
        self._factor = self._plan.slowdown if self._factor == 1.0 else 1.0

    def open_stage(self, assign: Assign, progress: Progress) -> ToyStage:
        """Return the layers of the toy, whose steps take their time."""
        stage = open_toy(assign, progress)
        held = self._plan.model.layers[assign.start : assign.stop]
        forget = stage.before_step

        def compute(batch: StageBatch) -> None:
            time.sleep(self._factor * time_batch(self._plan.device, held, batch))
            forget(batch)

        stage.before_step = compute
        return stage


async def serve(plan: PacedPlan) -> None:
    """Serve a head until it is gone."""
    device = PacedDevice(plan)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, device.toggle)
    await serve_head(plan.node, device.open_stage)


def main() -> None:
    """Run the process."""
    end_with_parent()
    plan = msgspec.json.decode(sys.argv[1].encode(), type=PacedPlan)
    log.configure(verbose=False, node=plan.node.node)
    asyncio.run(serve(plan))


if __name__ == "__main__":
    main()
