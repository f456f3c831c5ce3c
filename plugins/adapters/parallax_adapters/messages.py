"""The messages that bring adapters from the machine that has loaded them to those of the stages.

A head offers an adapter by its list of files (`AdapterOffer`). A node asks for what it lacks of its own layers, by
pieces (`AdapterAsk`, `AdapterPiece`), and tells when it has all (`AdapterHeld`). `AdapterGone` ends an offer.
`AdapterRoom` is sent first if memory is kept for adapters.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import msgspec
from msgspec import Meta

from parallax_core.api import MOST_TEXT, ServiceMessage, Text, make_printable, service_tag

DISTRIBUTION = "parallax-adapters"
PIECE = 2**16
"""The most bytes of a piece: steps of the model that follow it on the link wait little."""
WINDOW = 4
"""Pieces that a node asks for before they arrive."""
MOST_LIST = 2**18
"""The most bytes of a list of files."""

Key = Annotated[str, Meta(min_length=32, max_length=32, pattern="^[0-9a-f]*$")]
FileName = Annotated[str, Meta(max_length=64, pattern=r"^[\w.-]*$")]
Place = Annotated[int, Meta(ge=0, le=2**40)]


class AdapterOffer(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 0)):
    """Offers an adapter; from the head to a node."""

    most_bytes: ClassVar[int] = MOST_LIST + 256
    most_per_s: ClassVar[float] = 1000.0

    key: Key
    listed: Annotated[bytes, Meta(max_length=MOST_LIST)]
    """Its list of files, from which the key follows."""


class AdapterGone(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 1)):
    """Ends an offer, when nothing uses the adapter any more; from the head to a node."""

    most_bytes: ClassVar[int] = 256
    most_per_s: ClassVar[float] = 1000.0

    key: Key


class AdapterAsk(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 2)):
    """Asks for a piece of a file; from a node to its head."""

    most_bytes: ClassVar[int] = 256
    most_per_s: ClassVar[float] = 4000.0

    key: Key
    name: FileName
    start: Place


class AdapterPiece(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 3)):
    """A piece of a file, empty if the adapter is not offered any more; from the head to a node."""

    most_bytes: ClassVar[int] = PIECE + 512
    most_per_s: ClassVar[float] = 4000.0

    key: Key
    name: FileName
    start: Place
    data: Annotated[bytes, Meta(max_length=PIECE)]


class AdapterHeld(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 4)):
    """Tells that a node has what its layers need of an adapter, or why not; from a node to its head."""

    most_bytes: ClassVar[int] = 4 * MOST_TEXT + 256
    most_per_s: ClassVar[float] = 1000.0

    key: Key
    fault: Text = ""

    def tidy(self) -> Self:
        """Return the message with a printable text."""
        return msgspec.structs.replace(self, fault=make_printable(self.fault, MOST_TEXT))


class AdapterRoom(ServiceMessage, frozen=True, tag=service_tag(DISTRIBUTION, 5)):
    """Tells the room that stages keep for adapters, before all else; from the head to a node."""

    most_bytes: ClassVar[int] = 256
    most_per_s: ClassVar[float] = 10.0

    slots: Annotated[int, Meta(ge=1, le=2**20)]
    rank: Annotated[int, Meta(ge=1, le=2**20)]


ALL = (AdapterOffer, AdapterGone, AdapterAsk, AdapterPiece, AdapterHeld, AdapterRoom)
