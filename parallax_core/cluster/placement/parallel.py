"""Holds the layers and devices of every stage of every replica, and parses ``--layers``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from parallax_core.base.errors import UsageError
from parallax_core.cluster.placement.partition import split_layers
from parallax_core.contracts.stage import LayerRange


@dataclass(frozen=True, slots=True)
class StagePlace:
    """The layers and the device of a stage."""

    layers: LayerRange | None
    """Its layers; None: not computed yet, or the whole model if it is the only stage."""
    device: str
    """The device, as the backend names it; empty: the backend chooses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """The number of replicas, the stages of each, and their layers and devices.

    Raises:
        UsageError: if the numbers contradict each other; the message names them.
    """

    data_parallel: int = 1
    """The number of replicas of the whole model."""
    num_stages: int = 1
    """The number of stages of each replica."""
    layers: tuple[LayerRange, ...] = ()
    """The layers of each stage, in order; empty: even shares, see `with_layers`."""
    devices: tuple[str, ...] = ()
    """The device of each stage, replica by replica; empty: the backend chooses."""

    def __post_init__(self) -> None:
        for name, number in (("replicas", self.data_parallel), ("stages", self.num_stages)):
            if number < 1:
                message = f"{number} {name} are asked for, and at least 1 is needed"
                raise UsageError(message)
        if self.layers:
            _check_layers(self.layers, self.num_stages)
        if self.devices:
            self._check_devices()

    @property
    def replicas(self) -> tuple[tuple[StagePlace, ...], ...]:
        """The layers and device of each stage, by the rank of its replica and then in order."""
        layers = self.layers or (None,) * self.num_stages
        devices = self.devices or ("",) * (self.data_parallel * self.num_stages)
        starts = range(0, len(devices), self.num_stages)
        return tuple(tuple(map(StagePlace, layers, devices[start : start + self.num_stages])) for start in starts)

    def with_layers(
        self, num_layers: int, weights: Sequence[int] = (), illegal: Collection[int] = ()
    ) -> ParallelConfig:
        """Return this configuration with the layers of each stage, for a model of ``num_layers`` layers.

        Args:
            num_layers: of the model.
            weights: the cost of each layer, in any unit; empty: all the same.
            illegal: the layers with which no stage may begin, for layers that are not given.

        Raises:
            UsageError: if the given layers do not end at ``num_layers``, or there are more stages than layers or legal
                cuts allow.
        """
        if not self.layers:
            return dataclasses.replace(self, layers=split_layers(num_layers, self.num_stages, weights, illegal))
        if (stop := self.layers[-1].stop) != num_layers:
            message = f"the stages have layers 0 to {stop}, and the model has {num_layers} layers"
            raise UsageError(message, f"end the last stage at {num_layers}")
        return self

    def _check_devices(self) -> None:
        if twice := sorted({device for device in self.devices if self.devices.count(device) > 1}):
            message = f"device {twice[0]!r} is named more than once"
            raise UsageError(message, "name each device once")
        if not all(self.devices):
            message = "the name of a device is empty"
            raise UsageError(message, "name every device, or none to let the backend choose")
        needed = self.data_parallel * self.num_stages
        if len(self.devices) != needed:
            message = (
                f"{len(self.devices)} devices are named, and {self.data_parallel} replicas of "
                f"{self.num_stages} stages need {needed}"
            )
            raise UsageError(message, f"name {needed}, or none to let the backend choose")


def parse_layers(text: str) -> tuple[LayerRange, ...]:
    """Parse the layers of each stage, as in ``0-10,10-20,20-30``: each range begins where the one before ends.

    Raises:
        UsageError: if ``text`` is not of that form.
    """
    ranges = []
    for part in (part.strip() for part in text.split(",")):
        found = re.fullmatch(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})", part)
        if found is None:
            message = f"{part!r} in {text!r} is not a range of layers"
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
            message = f"a stage begins at layer {each.start}, and must begin at {begin}"
            raise UsageError(message, "give every layer to one stage: begin at 0, and each where the one before ends")
        if each.stop <= each.start:
            message = f"the range of layers {each.start}-{each.stop} is empty"
            raise UsageError(message, "give each stage at least one layer; the end of a range is not part of it")
        begin = each.stop
