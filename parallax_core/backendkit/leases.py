"""Helps backends whose stages serve through leases: checks ranges, counts shares, closes leases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from parallax_core.base.errors import BackendFailed, ParallaxError
from parallax_core.contracts.stage import SHARE_ROUNDING, Edit, LayerRange, Stage, StageBatch, StageInfo, StageOutput


class Lease:
    """A stage of some layers of a `LeasedStage`; see `Stage`.

    Args:
        stage: serves the lease.
        forget: called when the lease is closed, after its stage.
    """

    def __init__(self, stage: Stage, forget: Callable[[Lease], None]) -> None:
        self._stage, self._forget = stage, forget

    @property
    def info(self) -> StageInfo:
        """The properties of the lease."""
        return self._stage.info

    def edit(self, edits: Sequence[Edit]) -> None:
        """Apply ``edits``; see `Stage.edit`."""
        self._stage.edit(edits)

    def step(self, batch: StageBatch) -> StageOutput:
        """Run ``batch``; see `Stage.step`."""
        return self._stage.step(batch)

    def close(self) -> None:
        """Release the pages, and return the share of the memory. A second call does nothing."""
        try:
            self._stage.close()
        finally:
            self._forget(self)


class LeasedStage:
    """A stage opened with `StagePlan.leased`: it holds weights, and serves through leases; see `Leasing`.

    Args:
        info: the properties of a lease of all layers with the whole memory; the capability ``leases`` is added.
        open_part: opens a stage of a range of the layers, with a share of the memory for KV pages.
        release: releases the weights; called once, after all leases are closed.
    """

    def __init__(
        self, info: StageInfo, open_part: Callable[[LayerRange, float], Stage], release: Callable[[], None]
    ) -> None:
        self._info = replace(info, capabilities=info.capabilities | {"leases"})
        self._open_part: Callable[[LayerRange, float], Stage] | None = open_part
        self._release = release
        self._shares: dict[Lease, float] = {}
        """The share of each open lease."""

    @property
    def info(self) -> StageInfo:
        """The properties of the stage."""
        return self._info

    def lease(self, layers: LayerRange, memory_share: float) -> Stage:
        """Return a stage of ``layers`` with a share of the memory; see `Leasing.lease`."""
        if self._open_part is None:
            message = "the stage is closed"
            raise BackendFailed(message, "open the stage again")
        held = self._info.layers
        if not held.start <= layers.start < layers.stop <= held.stop:
            message = f"layers {layers.start}-{layers.stop} are not a range of the loaded {held.start}-{held.stop}"
            raise ValueError(message)
        self._check_share(memory_share)
        lease = Lease(self._open_part(layers, memory_share), self._forget)
        self._shares[lease] = memory_share
        return lease

    def edit(self, edits: Sequence[Edit]) -> None:
        """Refuse edits.

        Raises:
            BackendFailed: always.
        """
        del edits
        raise self._explain()

    def step(self, batch: StageBatch) -> StageOutput:
        """Refuse a batch.

        Raises:
            BackendFailed: always.
        """
        del batch
        raise self._explain()

    def close(self) -> None:
        """Close all leases, and release the weights. A second call does nothing."""
        with ExitStack() as stack:
            if self._open_part is not None:
                stack.callback(self._release)
            for lease in self._shares:
                stack.callback(lease.close)
            self._open_part = None

    def _check_share(self, memory_share: float) -> None:
        if not 0 < memory_share <= 1:
            message = f"a share of the memory is above 0 and at most 1, not {memory_share}"
            raise ValueError(message)
        taken = math.fsum(self._shares.values())
        if taken + memory_share > 1 + SHARE_ROUNDING:
            message = f"{memory_share:.1%} of the memory for KV pages are asked for, and {1 - taken:.1%} are free"
            raise ParallaxError(message, "close another lease, or ask for less")

    def _forget(self, lease: Lease) -> None:
        self._shares.pop(lease, None)

    def _explain(self) -> BackendFailed:
        layers = self._info.layers
        message = f"the stage of layers {layers.start}-{layers.stop} serves through leases only"
        return BackendFailed(message, "open a lease of it")
