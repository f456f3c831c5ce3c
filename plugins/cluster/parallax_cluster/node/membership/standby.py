"""A standby's side: follows the state of a coordinator, until it is to take over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import msgspec
from nacl.signing import SigningKey

from parallax_cluster.membership.standby_state import AcceptedStandby, StandbyState, read_state
from parallax_cluster.membership.term_proof import (
    TermProof,
    TermStatement,
    begin_proof,
    judge,
    read_proof,
    take_over,
    write_proof,
)
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.succession import MOST_STANDBYS, ClusterState, Succession
from parallax_core.api import HEAD, IncompatibleNode, ParallaxError, PeerLost, Transport
from parallax_core.api.node import Channel, greet
from parallax_core.wire.membership import Refusal

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds before it connects again to a coordinator that is gone."""
GREETING_S = 10.0
"""Seconds that the coordinator may take to greet."""


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What a standby would be as the coordinator."""

    reach: str
    """Where it would listen."""
    key: bytes
    """The key that it would prove on its links; empty if its transport has no keys."""
    signing: SigningKey
    """The key by which it would sign its term."""

    def introduce(self) -> Succession:
        """Return the message by which it offers itself to a coordinator."""
        return Succession(write_proof(begin_proof(self.signing, b"", 0, self.key)), (Peer(HEAD, self.reach),))

    def is_accepted(self, state: StandbyState) -> bool:
        """Return whether the coordinator of ``state`` has accepted this machine as a standby."""
        try:
            self.promote(state, "")
        except ParallaxError:
            return False
        return True

    def promote(self, state: StandbyState, address: str) -> StandbyState:
        """Return the state to take over with from the coordinator of ``state`` at ``address``.

        The standbys of that coordinator are accepted like before, and so are those that were coordinators, since they
        may have to serve again.

        Raises:
            ParallaxError: if that coordinator has not accepted it.
        """
        before = read_proof(state.proof)
        proof = take_over(before, self.signing, self.key)
        own, others = proof.latest.signer, {each.signer for each in state.standbys}
        former = [each.statement for each in before.signed if each.statement.signer not in {own, *others}]
        standbys = [
            *(each for each in state.standbys if each.signer != own),
            *(accept_former(each, address if each == before.latest else "") for each in former),
        ]
        return msgspec.structs.replace(
            state,
            term=proof.latest.term,
            proof=write_proof(proof),
            standbys=standbys[-MOST_STANDBYS:],
            servers={each.machine: each.key for each in standbys if each.key},
            newer=b"",
        )


def accept_former(stated: TermStatement, address: str) -> AcceptedStandby:
    """Return a coordinator, which was at ``address`` if that is known, as a standby of another one."""
    name = f"server-{stated.term}"
    return AcceptedStandby(machine=name, key=stated.key, signer=stated.signer, address=address)


@dataclass(slots=True)
class Follower:
    """Follows a coordinator over a transport that has started. Belongs to one event loop."""

    transport: Transport
    address: str
    """Of the coordinator."""
    node: str
    """The name of this standby."""
    candidacy: Candidacy
    """What this machine would be as the coordinator."""
    note: Callable[[StandbyState, bool], None]
    """Called with each state, and whether the coordinator is there."""
    state: StandbyState | None = None
    """The latest state; None: none has come yet."""
    _promoted: asyncio.Event = field(default_factory=asyncio.Event)

    def promote(self) -> None:
        """Make `run` return; without a state, only log that this is impossible."""
        if self.state is None:
            logger.error("cannot take over: the coordinator has said nothing yet")
        else:
            self._promoted.set()

    async def run(self) -> StandbyState:
        """Follow until `promote` is called; return the state to serve with, in the next term.

        Raises:
            IncompatibleNode: if the coordinator runs a version of Parallax with which this node cannot work.
            ParallaxError: if the address is invalid, or the coordinator refuses this standby, or has not accepted it.
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
        return self.candidacy.promote(self.state, self.address)

    async def look(self) -> StandbyState | None:
        """Return the state of the coordinator; None: it is not there, or says nothing in time.

        Raises:
            IncompatibleNode: if the coordinator runs a version of Parallax with which this node cannot work.
            ParallaxError: if the address is invalid, or the coordinator refuses this standby.
        """
        try:
            async with asyncio.timeout(GREETING_S):
                await self._hear(Channel(await self.transport.connect(self.address, HEAD)), most=1)
        except IncompatibleNode:
            raise
        except (PeerLost, TimeoutError):
            return None
        return self.state

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

    async def _hear(self, channel: Channel, most: float = inf) -> None:
        """Take what a coordinator sends, ``most`` messages at most."""
        channel.learn([Succession, ClusterState])
        try:
            channel.check_role("head")
            async with asyncio.timeout(GREETING_S):
                await greet(channel, self.node, "standby")
            await channel.send(self.candidacy.introduce())
            while most > 0:
                most -= 1
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
            if self.state is None or state.proof != self.state.proof:
                self._check(channel.peer, read_proof(state.proof))
        except ValueError as error:
            raise PeerLost(f"node {channel.peer!r} sent a state that cannot be read: {error}") from error
        if self.state is None:
            logger.info("following the coordinator model=%s term=%d", state.model, state.term)
        self.state = state
        self.note(state, True)  # noqa: FBT003 -- whether it is there

    def _check(self, peer: str, told: TermProof) -> None:
        """Check that a coordinator is no older than that of the latest state.

        Raises:
            PeerLost: if it is.
        """
        before = read_proof(self.state.proof) if self.state is not None else told
        if before.cluster == told.cluster and judge(before, told) in {"older", "unproved"}:
            raise PeerLost(f"node {peer!r} is an older coordinator: its term is {told.latest.term}")

    async def _dismiss(self, channel: Channel, state: StandbyState) -> None:
        """Tell the old coordinator that it was replaced."""
        with contextlib.suppress(PeerLost):
            await channel.send(Succession(self.candidacy.promote(state, self.address).proof))
