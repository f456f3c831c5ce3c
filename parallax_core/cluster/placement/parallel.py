"""Which layers run on which devices: the only place that knows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.partition import split_layers
from parallax_core.contracts.stage import LayerRange


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage goes."""

    layers: LayerRange | None
    """Its layers; None: its share, not worked out yet, or the whole model where it is the only one."""
    device: str
    """In the backend's words; empty: the backend's choice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """So many replicas, each a pipeline of so many stages, on these devices.

    Raises:
        UsageError: if the numbers do not fit together; the message names them.
    """

    data_parallel: int = 1
    """Replicas of the whole model."""
    num_stages: int = 1
    """Stages of each replica."""
    layers: tuple[LayerRange, ...] = ()
    """The layers of each stage, in order; empty: shares of about the same size, see `with_layers`."""
    devices: tuple[str, ...] = ()
    """Those of the first replica in the order of its stages, then those of the next; empty: the backend's choice."""

    def __post_init__(self) -> None:
        for name, number in (("replicas", self.data_parallel), ("stages", self.num_stages)):
            if number < 1:
                message = f"{number} {name} are asked for, and there is at least 1"
                raise UsageError(message)
        if self.layers:
            _check_layers(self.layers, self.num_stages)
        if self.devices:
            self._check_devices()

    @property
    def replicas(self) -> tuple[tuple[StagePlace, ...], ...]:
        """Where the stages of each replica go, by rank and then in order."""
        layers = self.layers or (None,) * self.num_stages
        devices = self.devices or ("",) * (self.data_parallel * self.num_stages)
        starts = range(0, len(devices), self.num_stages)
        return tuple(tuple(map(StagePlace, layers, devices[start : start + self.num_stages])) for start in starts)

    def with_layers(self, num_layers: int, weights: Sequence[int] = ()) -> ParallelConfig:
        """Return this for a model of so many layers, each stage with its own.

        Args:
            num_layers: of the model.
            weights: what each layer costs, in any unit; empty: the same.

        Raises:
            UsageError: if the layers given are not those of the model, or there are more stages than layers.
        """
        if not self.layers:
            return dataclasses.replace(self, layers=split_layers(num_layers, self.num_stages, weights))
        if (stop := self.layers[-1].stop) != num_layers:
            message = f"layers 0 to {stop} are given to stages, and the model has {num_layers}"
            raise UsageError(message, f"end the last stage at {num_layers}")
        return self

    def _check_devices(self) -> None:
        if twice := sorted({device for device in self.devices if self.devices.count(device) > 1}):
            message = f"device {twice[0]!r} is named more than once"
            raise UsageError(message, "name each device once")
        if not all(self.devices):
            message = "the name of a device is empty"
            raise UsageError(message, "name them all, or none to leave it to the backend")
        needed = self.data_parallel * self.num_stages
        if len(self.devices) != needed:
            message = (
                f"{len(self.devices)} devices are named, and {self.data_parallel} replicas of "
                f"{self.num_stages} stages need {needed}"
            )
            raise UsageError(message, f"name {needed}, or none to leave it to the backend")


def parse_layers(text: str) -> tuple[LayerRange, ...]:
    """Return the layers of each stage, from ``0-10,10-20,20-30``: each range begins where the one before ended.

    Raises:
        UsageError: if it is not written like that.
    """
    ranges = []
    for part in (part.strip() for part in text.split(",")):
        found = re.fullmatch(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})", part)
        if found is None:
            message = f"{part!r} in {text!r} is no range of layers"
            raise UsageError(message, "write the first layer and the one after the last, such as 0-10,10-20")
        ranges.append(LayerRange(int(found.group(1)), int(found.group(2))))
    _check_layers(ranges, len(ranges))
    return tuple(ranges)


def _check_layers(layers: Sequence[LayerRange], num_stages: int) -> None:
    if len(layers) != num_stages:
        message = f"layers are given for {len(layers)} stages, and there are {num_stages}"
        raise UsageError(message)
    begin = 0
    for each in layers:
        if each.start != begin:
            message = f"a stage begins at layer {each.start}, and must at {begin}"
            raise UsageError(message, "every layer goes to one stage: begin at 0, and each where the one before ended")
        if each.stop <= each.start:
            message = f"layers {each.start}-{each.stop} are none"
            raise UsageError(message, "give each stage at least one layer; the end of a range is not part of it")
        begin = each.stop
