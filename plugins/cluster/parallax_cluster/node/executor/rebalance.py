"""Balances layers over remote stages by their measured speed and the memory of their nodes.

Speed is measured on the model itself, before the first request; nodes report their memory when they join.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from statistics import median

from parallax_cluster.placement.fitted import fit_layers
from parallax_cluster.placement.layer_cost import LayerCosts
from parallax_cluster.placement.layer_moves import choose_layers, find_rates, find_rooms
from parallax_core.api import Draw, LayerRange, Open, Row, Sampling, SeqId, SequenceSpec, StageInfo, StageLost
from parallax_core.api.node import Channel, Epoch, Failure, Result, Step
from parallax_core.node.executor.base import StageLocation
from parallax_core.node.executor.remote import RemoteExecutor

logger = logging.getLogger(__name__)

STEPS = 8
"""Tokens decoded to measure the stages."""
WARM_UP = 3
"""The first tokens of them, which are not measured."""
PATIENCE_S = 60.0
"""Seconds that decoding all of them may take."""
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
"""The sequence that is decoded."""


class RebalancingExecutor:
    """An `Executor` that measures the time per token of each stage, and moves layers from slow stages to fast ones.

    It measures once, when it first opens, and assumes that layers of equal weight cost the same. Before each opening,
    it moves layers off nodes with too little memory for them.
    """

    most_failures: int | None = None

    def __init__(self, executor: RemoteExecutor, layer_costs: LayerCosts) -> None:
        """Balance the layers of ``executor`` for a model."""
        self._executor = executor
        self._layer_costs = layer_costs
        self._is_balanced = False
        self._rates: Sequence[float] = ()
        """Seconds per unit of layer weight, for each stage; empty before the measurement."""

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels from the head to each stage, once the stages are open."""
        return self._executor.channels

    async def open(self) -> tuple[StageInfo, ...]:
        """Open the stages; the first time, measure them and open them again with balanced layers; see `Executor.open`.

        Raises:
            UsageError: if all nodes together have too little memory for the model; nothing is loaded then.
        """
        await self._executor.gather()
        rooms = find_rooms(self._executor.joins(), sum(self._layer_costs.sizes))
        self._make_room(rooms)
        if self._is_balanced or len(rooms) == 1:
            return await self._executor.open()
        infos = await self._executor.assemble()
        layers, layer_costs = [info.layers for info in infos], self._layer_costs
        seconds = await time_stages(self._executor.channels)
        self._is_balanced = True
        self._rates = find_rates(layers, layer_costs, seconds)
        better = choose_layers(layers, layer_costs, seconds, rooms)
        logger.info("stages measured ms=%s", [round(1000 * each, 2) for each in seconds])
        if better is not None:
            self._reassign(better)
        return await self._executor.open()

    def _make_room(self, rooms: Sequence[float]) -> None:
        """Move layers if a node has too little memory for its own."""
        sizes, layers = self._layer_costs.sizes, self._executor.layers
        needed = [sum(sizes[each.start : each.stop] if each else sizes) for each in layers]
        if any(size > room for size, room in zip(needed, rooms, strict=True)):
            rates, costs = self._rates or [1.0] * len(layers), self._layer_costs
            self._reassign(fit_layers(costs.weights, rates, rooms, sizes, illegal=costs.illegal))

    def _reassign(self, layers: Sequence[LayerRange]) -> None:
        logger.info("layers move to %s", ", ".join(f"{each.start}-{each.stop}" for each in layers))
        self._executor.give(layers)

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage ended, and why; see `Executor.explain`."""
        return await self._executor.explain(loss)

    async def abandon(self, stage: int) -> None:
        """Give up a stage whose step hangs."""
        await self._executor.abandon(stage)

    async def replace(self, stage: int) -> bool:
        """Load a stage of a leaving node on another one; see `Executor.replace`."""
        return await self._executor.replace(stage)

    async def close(self) -> None:
        """Release all nodes."""
        await self._executor.close()

    def needs(self) -> str:
        """Return which stages wait for a node to be started by hand."""
        return self._executor.needs()

    def locations(self) -> tuple[StageLocation, ...]:
        """Return where each stage runs."""
        return self._executor.locations()


async def time_stages(channels: Sequence[Channel]) -> list[float]:
    """Decode a few tokens, one at a time, and return the median seconds per token of each stage.

    The sequence stays open: open the stages again afterwards.

    Raises:
        StageLost: if a stage fails, or the tokens take too long.
        PeerLost: if a node is gone.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            took = [await _time_step(channels, number) for number in range(1, STEPS + 1)]
    except TimeoutError as error:
        raise StageLost("the stages did not decode a few tokens in time", "look at the logs of the nodes") from error
    return [median(times) for times in zip(*took[WARM_UP:], strict=True)]


async def _time_step(channels: Sequence[Channel], number: int) -> list[float]:
    edits = (Open(SeqId(0), SPEC),) if number == 1 else ()
    row = Row(SeqId(0), number - 1, (0,), (Draw(0),))
    await channels[0].send(Step(Epoch(0), number, edits, (row,)))
    return [await _receive_seconds(channel) for channel in channels]


async def _receive_seconds(channel: Channel) -> float:
    while True:
        message = await channel.receive()
        if isinstance(message, Failure):
            raise StageLost(f"node {channel.peer!r} could not decode a token: {message.message}")
        if isinstance(message, Result):
            return message.seconds
