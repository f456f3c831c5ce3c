"""Stages that get as many layers as they are fast: measured on the model itself, before the first request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from statistics import median

from parallax_core.base.errors import StageLost
from parallax_core.base.ids import Epoch, SeqId
from parallax_core.config.fit import fit_layers
from parallax_core.contracts.sample import Sampling
from parallax_core.contracts.stage import Draw, LayerRange, Open, Row, SequenceSpec, StageInfo
from parallax_core.node.channel import Channel
from parallax_core.node.company import LEASE, Post
from parallax_core.node.troop import Troop
from parallax_core.wire.messages import Failure, Result, Step

logger = logging.getLogger(__name__)

STEPS = 8
"""So many tokens are decoded."""
WARM_UP = 3
"""So many of the first do not count."""
PATIENCE_S = 60.0
"""How long all of them may take."""
WORTH = 0.9
"""Layers move only where the slowest stage would take less than this share of its time."""
SPEC = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))


class Balanced:
    """A `Company` that measures what a token costs each of its stages, and moves layers from slow ones to fast ones.

    It does so once, when it first opens; it makes no difference between a layer and another of the same weight.
    """

    heals = True

    def __init__(self, troop: Troop, weights: Sequence[int]) -> None:
        """Balance ``troop`` for a model whose layers weigh ``weights``, the last with the head."""
        self._troop = troop
        self._weights = tuple(weights)
        self._is_balanced = False

    @property
    def channels(self) -> tuple[Channel, ...]:
        """From the head to each stage, once they are open."""
        return self._troop.channels

    async def open(self) -> tuple[StageInfo, ...]:
        """Open the stages, and the first time open them again with the layers that suit them; see `Company.open`."""
        infos = await self._troop.open()
        if self._is_balanced or len(infos) == 1:
            return infos
        seconds = await time_stages(self._troop.channels)
        self._is_balanced = True
        layers = choose_layers([info.layers for info in infos], self._weights, seconds)
        logger.info("stages measured ms=%s", [round(1000 * each, 2) for each in seconds])
        if layers is not None:
            logger.info("layers move to %s", ", ".join(f"{each.start}-{each.stop}" for each in layers))
            self._troop.give(layers)
        return await self._troop.open()

    async def explain(self, loss: StageLost) -> StageLost:
        """Return which stage has ended, and how; see `Company.explain`."""
        return await self._troop.explain(loss)

    async def close(self) -> None:
        """Let go of all nodes."""
        await self._troop.close()

    def needs(self) -> str:
        """Return which stages wait for a node to be started by hand."""
        return self._troop.needs()

    def posts(self) -> tuple[Post, ...]:
        """Return where each stage runs."""
        return self._troop.posts()


def choose_layers(
    layers: Sequence[LayerRange], weights: Sequence[int], seconds: Sequence[float]
) -> tuple[LayerRange, ...] | None:
    """Return better layers for stages that took ``seconds`` with ``layers``; None where it is not worth it."""
    loads = [sum(weights[each.start : each.stop]) for each in layers]
    rates = [took / load for took, load in zip(seconds, loads, strict=True)]
    better = fit_layers(weights, rates)
    pace = max(sum(weights[each.start : each.stop]) * rate for each, rate in zip(better, rates, strict=True))
    return better if pace < WORTH * max(seconds) else None


async def time_stages(channels: Sequence[Channel]) -> list[float]:
    """Decode a few tokens, one at a time, and return how long each stage took for one.

    What is open afterwards is to be forgotten by opening the stages again.

    Raises:
        StageLost: if a stage fails, or it takes too long.
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
    await channels[0].send(Step(LEASE, Epoch(0), number, edits, (row,)))
    return [await _hear(channel) for channel in channels]


async def _hear(channel: Channel) -> float:
    while True:
        message = await channel.receive()
        if isinstance(message, Failure):
            raise StageLost(f"node {channel.peer!r} could not decode a token: {message.message}")
        if isinstance(message, Result):
            return message.seconds
