"""A standby's side: follows the state of a coordinator, until it is to take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from parallax_core.base.errors import IncompatibleNode, ParallaxError, PeerLost
from parallax_core.base.ids import HEAD
from parallax_core.cluster.membership.standby_state import StandbyState, read_state
from parallax_core.cluster.membership.succession import Term, take_over
from parallax_core.contracts.transport import Transport
from parallax_core.node.channel import Channel
from parallax_core.node.handshake import greet
from parallax_core.node.worker.terms import show_term
from parallax_core.wire.membership import Refusal
from parallax_core.wire.profile import Peer
from parallax_core.wire.succession import ClusterState, Succession

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds before it connects again to a coordinator that is gone."""
GREETING_S = 10.0
"""Seconds that the coordinator may take to greet."""


@dataclass(slots=True)
class Follower:
    """Follows a coordinator over a transport that has started. Belongs to one event loop."""

    transport: Transport
    address: str
    """Of the coordinator."""
    node: str
    """The name of this standby."""
    reach: str
    """Where this machine would listen as the coordinator."""
    note: Callable[[StandbyState, bool], None]
    """Called with each state, and whether the coordinator is there."""
    state: StandbyState | None = None
    """The latest state; None: none has come yet."""
    _promoted: asyncio.Event = field(default_factory=asyncio.Event)

    def promote(self) -> None:
        """Have `run` return. Without a state that is not possible, and logged."""
        if self.state is None:
            logger.error("cannot take over: the coordinator has said nothing yet")
        else:
            self._promoted.set()

    async def run(self) -> StandbyState:
        """Follow until `promote` is called; return the state with which to serve, whose term is the next.

        Raises:
            ParallaxError: if the address is invalid, or the coordinator refuses this standby.
        """
        promoted = asyncio.create_task(self._promoted.wait())
        following = asyncio.create_task(self._follow())
        await asyncio.wait([promoted, following], return_when=asyncio.FIRST_COMPLETED)
        following.cancel()
        promoted.cancel()
        await asyncio.gather(following, promoted, return_exceptions=True)
        if not following.cancelled() and (error := following.exception()) is not None:
            raise error
        assert self.state is not None, "it is promoted with a state only"
        term = take_over(Term(self.state.cluster, self.state.term))
        return msgspec.structs.replace(self.state, term=term.number)

    async def _follow(self) -> None:
        while True:
            try:
                await self._hear(Channel(await self.transport.connect(self.address, HEAD)))
            except IncompatibleNode:
                raise
            except PeerLost as error:  # it may come back
                reason = f"{error.message}; {error.hint}" if error.hint else error.message
                logger.warning("the coordinator at %s is not there: %s", self.address, reason)
            if self.state is not None:
                self.note(self.state, False)  # noqa: FBT003 -- whether it is there
            await asyncio.sleep(AGAIN_S)

    async def _hear(self, channel: Channel) -> None:
        try:
            channel.check_role("head")
            async with asyncio.timeout(GREETING_S):
                await greet(channel, self.node, "standby")
            await channel.send(Succession(b"", 0, (Peer(HEAD, self.reach),)))
            while True:
                message = await channel.receive()
                if isinstance(message, Refusal):
                    raise ParallaxError(message.message, message.hint)
                if not isinstance(message, ClusterState):
                    raise PeerLost(f"the coordinator sent a {type(message).__name__}, which is unexpected here")
                self._take(channel, message)
        except TimeoutError as error:
            raise PeerLost("the coordinator did not greet in time") from error
        except asyncio.CancelledError:
            if self._promoted.is_set() and self.state is not None:
                await self._dismiss(channel, self.state)
            raise
        finally:
            await channel.leave()

    def _take(self, channel: Channel, message: ClusterState) -> None:
        try:
            state = read_state(message.state)
        except (ValueError, ParallaxError) as error:
            raise PeerLost(f"node {channel.peer!r} sent a state that cannot be read: {error}") from error
        if self.state is not None and self.state.cluster == state.cluster and state.term < self.state.term:
            raise PeerLost(f"node {channel.peer!r} is an older coordinator: its term is {state.term}")
        if self.state is None:
            logger.info("following the coordinator model=%s term=%d", state.model, state.term)
        self.state = state
        self.note(state, True)  # noqa: FBT003 -- whether it is there

    async def _dismiss(self, channel: Channel, state: StandbyState) -> None:
        """Tell a coordinator that is still there that it no longer is one."""
        with contextlib.suppress(PeerLost):
            await channel.send(show_term(take_over(Term(state.cluster, state.term))))
