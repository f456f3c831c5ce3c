"""How nodes that cannot reach each other are linked over a third one, a relay, which both can reach.

The head names the relays to all nodes (`Relays`). A node holds a link of purpose ``relay`` to each, over which it
hears who calls (`Ring`). A node that calls another makes a link of purpose ``stream`` to a relay, and asks for that
node (`Reach`); the other makes such a link, too, and names the call by its token (`PickUp`). The relay confirms to both
(`Reached`), or says why not (`NotReached`). Then `ApiData` goes both ways. Its bytes are a connection of the transport,
encrypted and authenticated between the two nodes.

Once the nodes can reach each other, the one that called makes a link of purpose ``direct``, ends the relayed one by a
`HandOver`, and tells the head so (`Relinked`).

A node that offers to be a relay makes a link of purpose ``offer`` to its head (`OfferRelay`), which tells it who may
use it (`RelayUsers`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from parallax_core.api import Name, PeerKey, ServiceMessage, Text, check_words

MOST_RELAYS = 8
"""The most relays that a head names."""
MOST_USERS = 4096
"""The most nodes that may use a relay."""
TOKEN_BYTES = 16


class RelayPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A relay, and where it listens."""

    node: Name
    address: Text
    """Empty: the relay is the head itself, where the node has joined it."""
    key: PeerKey = b""
    """The key that it proves; empty: the node knows it, or none is needed."""


class Relays(ServiceMessage, frozen=True, tag=32):
    """Names the relays of a cluster, in place of those named before; from the head."""

    relays: Annotated[tuple[RelayPlace, ...], msgspec.Meta(max_length=MOST_RELAYS)] = ()

    def check(self) -> None:
        """Check the texts."""
        for relay in self.relays:
            check_words(relay.node, relay.address)


class Reach(ServiceMessage, frozen=True, tag=33):
    """Asks a relay for a stream to a node."""

    node: Name

    def check(self) -> None:
        """Check the name."""
        check_words(self.node)


class Ring(ServiceMessage, frozen=True, tag=34):
    """Tells a node that another one asks for a stream to it."""

    most_per_s: ClassVar[float] = 1000.0

    node: Name
    """The node that asks."""
    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
    """Names the call; it can be used once, by the node that is told it, for a few seconds."""

    def check(self) -> None:
        """Check the name."""
        check_words(self.node)


class PickUp(ServiceMessage, frozen=True, tag=35):
    """Answers a `Ring`, over a link of its own."""

    token: Annotated[bytes, msgspec.Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]


class Reached(ServiceMessage, frozen=True, tag=36):
    """Tells both ends of a stream that the other is there."""


class NotReached(ServiceMessage, frozen=True, tag=37):
    """Tells a node why there is no stream."""

    reason: Text

    def check(self) -> None:
        """Check the reason."""
        check_words(self.reason)


class OfferRelay(ServiceMessage, frozen=True, tag=38):
    """Offers a head to be a relay, for as long as the link lasts."""

    address: Text
    """Where it listens."""

    def check(self) -> None:
        """Check the address."""
        check_words(self.address)


class RelayUser(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node that may use a relay."""

    node: Name
    key: PeerKey = b""


class RelayUsers(ServiceMessage, frozen=True, tag=39):
    """Names the nodes that may use a relay, in place of those named before; from the head."""

    most_bytes: ClassVar[int] = 2**22

    users: Annotated[tuple[RelayUser, ...], msgspec.Meta(max_length=MOST_USERS)] = ()

    def check(self) -> None:
        """Check the names."""
        check_words(*(user.node for user in self.users))


class Relinked(ServiceMessage, frozen=True, tag=43):
    """Tells the head that a stage is linked to the next one in another way than it has said before."""

    relay: Name = ""
    """The relay over which it is linked; empty: directly."""

    def check(self) -> None:
        """Check the name."""
        check_words(self.relay)
