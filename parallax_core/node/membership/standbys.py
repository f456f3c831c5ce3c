"""A coordinator's side of its term: tells nodes of it and of its standbys, and the standbys of its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import Epoch, name_machine
from parallax_core.base.taskgroup import run_in_turns
from parallax_core.cluster.membership.standby_state import StandbyState, write_state
from parallax_core.cluster.membership.succession import Candidate, Term
from parallax_core.node.channel import Channel
from parallax_core.node.coordinator.own_node import OWN_NODE
from parallax_core.node.executor.base import LEASE
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.node.worker.terms import show_term
from parallax_core.wire.membership import Refusal
from parallax_core.wire.messages import Message
from parallax_core.wire.succession import MOST_STANDBYS, ClusterState, Succession

logger = logging.getLogger(__name__)

BEAT_S = 1.0
"""The most seconds between two states that a standby is sent."""
LOOK_S = 0.2
"""Seconds between two looks at whether the state has changed."""
FIRST_S = 10.0
"""Seconds in which a standby has to say where it would listen."""


class Standbys:
    """The standbys of a coordinator. Belongs to one event loop."""

    def __init__(
        self, registry: NodeRegistry, term: Term, describe: Callable[[], StandbyState], end: Callable[[str], None]
    ) -> None:
        """Tell the nodes of ``registry`` of ``term``, and standbys what ``describe`` returns.

        ``end`` is called with the reason once a standby, or most machines, know of a newer term.
        """
        self._registry = registry
        self._describe = describe
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone: set[str] = set()
        """The machines that follow a newer coordinator."""
        self.term = term
        self.names: list[str] = []
        """The standbys that follow now."""

    def start(self) -> None:
        """Greet nodes and standbys from now on."""
        self._registry.note_join = self._greet
        self._registry.services["standby"] = self._serve

    async def stop(self) -> None:
        """Tell nobody any more. Idempotent."""
        self._registry.note_join = None
        self._registry.services.pop("standby", None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _greet(self, node: JoinedNode) -> None:
        node.channel.divert(Succession, partial(self._hear_node, node))
        self._start(self._tell(node.channel))

    def _start(self, telling: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, channel: Channel) -> None:
        with contextlib.suppress(PeerLost):
            await channel.send(show_term(self.term))

    def _hear_node(self, node: JoinedNode, told: Succession) -> None:
        """Note that a machine follows a newer coordinator; end once most machines do, since a single one may lie."""
        if not self._is_newer(told):
            return
        machine = name_machine(node.name)
        logger.warning("node follows another coordinator node=%s term=%d", node.name, told.term)
        self._gone.add(machine)
        others = {name_machine(each.name) for each in self._registry.joined} - self._gone - {name_machine(OWN_NODE)}
        if len(self._gone) > len(others):
            self._hear(told)

    def _hear(self, told: Succession) -> None:
        """End if there is a newer coordinator of this cluster."""
        if self._is_newer(told):
            self._end(
                f"another coordinator has taken over: its term is {told.term}, and that of this one was "
                f"{self.term.number}"
            )

    def _is_newer(self, told: Succession) -> bool:
        return told.cluster == self.term.cluster and told.term > self.term.number

    async def _serve(self, channel: Channel) -> None:
        """Tell a standby all it has to know, until it is gone."""
        try:
            await _check_standby(channel)
            channel.admit()
            async with asyncio.timeout(FIRST_S):
                first = await channel.receive()
            candidate = _read_candidate(channel, first)
            logger.info("standby follows node=%s address=%s", channel.peer, candidate.address)
            self._add(candidate)
            self.names.append(channel.peer)
            channel.divert(Succession, self._hear)
            await self._keep_told(channel)
        except (PeerLost, TimeoutError) as error:
            logger.warning("standby is gone node=%s: %s", channel.peer, error)
        finally:
            self.names = [name for name in self.names if name != channel.peer]
            await channel.leave()

    async def _keep_told(self, channel: Channel) -> None:
        hearing = asyncio.create_task(channel.receive())
        loop, latest, at = asyncio.get_running_loop(), b"", 0.0
        try:
            while not hearing.done():
                state = write_state(self._describe())
                if state != latest or loop.time() >= at + BEAT_S:
                    latest, at = state, loop.time()
                    await channel.send(ClusterState(state))
                await asyncio.wait([hearing], timeout=LOOK_S)
            message = hearing.result()
            raise PeerLost(f"standby {channel.peer!r} sent a {type(message).__name__}")
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    def _add(self, candidate: Candidate) -> None:
        """Tell all nodes of one more coordinator that may follow; of too many, the oldest is forgotten."""
        heads = [each for each in self.term.heads if each.key != candidate.key or not each.key]
        self.term = replace(self.term, heads=tuple([*heads, candidate][-MOST_STANDBYS:]))
        self._start(run_in_turns(self._tell(node.channel) for node in self._registry.joined))


async def _check_standby(channel: Channel) -> None:
    """Check that the key of a standby allows it to be a head, since nodes are going to trust it as one; tell it if not.

    Raises:
        PeerLost: if it may not.
    """
    try:
        channel.check_role("head")
    except PeerLost:
        name = name_machine(channel.peer)
        message = f"machine {name!r} may run stages of this cluster, and not take it over"
        hint = f"if it should: `parallax keys allow {channel.key.hex()} {name} --role any` on the server's machine"
        await channel.send(Refusal(LEASE, Epoch(0), 0, message, hint))
        raise


def _read_candidate(channel: Channel, message: Message) -> Candidate:
    """Return where a standby would listen, with the key that it has proved.

    Raises:
        PeerLost: if it does not say.
    """
    if not isinstance(message, Succession) or len(message.heads) != 1:
        raise PeerLost(f"standby {channel.peer!r} did not say where it would listen")
    return Candidate(message.heads[0].address, channel.key)
