"""A coordinator's side of its term: tells nodes of it and its standbys, and standbys of its state."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from functools import partial

from parallax_cluster.membership.standby_state import AcceptedStandby, StandbyState, write_state
from parallax_cluster.membership.term_proof import read_proof, write_proof
from parallax_cluster.node.membership.own_term import OwnTerm, describe_newer
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.succession import ClusterState, Succession
from parallax_core.api import HEAD, LinkPurpose, PeerLost, name_machine
from parallax_core.api.node import Channel, Epoch, Message
from parallax_core.node.membership.joined_node import JoinedNode
from parallax_core.node.membership.registry import NodeRegistry
from parallax_core.wire.membership import Refusal

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
        self,
        registry: NodeRegistry,
        own: OwnTerm,
        describe: Callable[[], StandbyState],
        end: Callable[[str], None],
    ) -> None:
        """Prove the term ``own`` to the nodes of ``registry``, and tell standbys what ``describe`` returns.

        ``end`` is called with the reason once it is proved that another coordinator has taken over.
        """
        self._registry = registry
        self._describe = describe
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()
        self.own = own
        self.names: list[str] = []
        """The standbys that follow now."""

    def start(self) -> None:
        """Greet nodes and standbys, those that have joined already, too."""
        self._check_keys()
        self._registry.note_join = self._greet
        for node in self._registry.joined:
            self._greet(node)
        self._registry.purposes["standby"] = LinkPurpose(serve=self._serve, role=None, must_have_joined=False)
        self._start(self._watch_keys())

    async def stop(self) -> None:
        """Stop serving standbys and proving the term. Idempotent."""
        self._registry.note_join = None
        self._registry.purposes.pop("standby", None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    def _greet(self, node: JoinedNode) -> None:
        node.channel.divert(Succession, partial(self._hear, node.channel))
        self._start(self._tell(node.channel))

    async def _tell(self, channel: Channel) -> None:
        heads = tuple(Peer(HEAD, each.address, each.key) for each in self.own.heads)
        with contextlib.suppress(PeerLost):
            await channel.send(Succession(write_proof(self.own.proof), heads))

    def _tell_all(self) -> None:
        for node in self._registry.joined:
            self._start(self._tell(node.channel))

    def _hear(self, channel: Channel, told: Succession) -> None:
        """End if a node or a standby proves that another coordinator has taken over. It says so once."""
        channel.divert(Succession, _ignore)
        try:
            term = self.own.hear(told.proof)
        except ValueError as error:
            logger.warning("node tells a term that is not proved node=%s: %s", channel.peer, error)
            return
        if term:
            self._end(describe_newer(term, self.own.proof.latest.term))

    def _check_keys(self) -> None:
        """Withdraw the standbys of machines whose keys may no longer be a head's."""

        def is_allowed(standby: AcceptedStandby) -> bool:
            return self._registry.find_role(standby.key) in {"head", "any"}

        if self.own.keep_only(is_allowed):
            self._tell_all()

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            self._check_keys()

    async def _serve(self, channel: Channel) -> None:
        """Tell a standby all it has to know, until it is gone."""
        channel.learn([Succession])
        try:
            await _check_standby(channel)
            channel.admit()
            async with asyncio.timeout(FIRST_S):
                first = await channel.receive()
            standby = _read_standby(channel, first)
            logger.info("standby follows node=%s address=%s", channel.peer, standby.address)
            if self.own.accept(standby):
                self._tell_all()
            self.names.append(channel.peer)
            channel.divert(Succession, partial(self._hear, channel))
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


async def _check_standby(channel: Channel) -> None:
    """Check that a standby's key has the role of a head, since nodes will trust it as one; tell it if not.

    Raises:
        PeerLost: if it may not.
    """
    try:
        channel.check_role("head")
    except PeerLost:
        name = name_machine(channel.peer)
        message = f"machine {name!r} may run stages of this cluster, and not take it over"
        hint = f"if it should: `parallax keys allow {channel.key.hex()} {name} --role any` on the server's machine"
        await channel.send(Refusal(Epoch(0), 0, message, hint))
        raise


def _read_standby(channel: Channel, message: Message) -> AcceptedStandby:
    """Return where a standby would listen, and by which key it would sign, with the key that it has proved.

    Raises:
        PeerLost: if it does not say, or does not prove that the signing key is its own.
    """
    if not isinstance(message, Succession) or len(message.heads) != 1:
        raise PeerLost(f"standby {channel.peer!r} did not say where it would listen")
    try:
        stated = read_proof(message.proof).latest
    except ValueError as error:
        raise PeerLost(f"standby {channel.peer!r} did not say by which key it would sign: {error}") from error
    if channel.key and stated.key != channel.key:
        raise PeerLost(f"standby {channel.peer!r} would prove another key as a server than it does now")
    [head] = message.heads
    return AcceptedStandby(
        machine=name_machine(channel.peer), key=channel.key, signer=stated.signer, address=head.address
    )


def _ignore(told: Succession) -> None:
    """Take no further note of what a node tells."""
