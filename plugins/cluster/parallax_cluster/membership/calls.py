"""What announcements say: a node offers its layers, and a head calls nodes."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from parallax_cluster.membership.announcement import Announcement, ClusterSecret
from parallax_core.api import LARGEST, MOST_HEAD_BYTES, Count

OFFERS, CALLS = b"offers", b"calls"


class LayerOffer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The layers that a node runs for whoever calls it."""

    model: Annotated[str, msgspec.Meta(max_length=512)]
    """The full name of the model, ``source:name``."""
    start: Count
    stop: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    """``start`` to ``stop`` are its layers, half open."""


class HeadCall(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Asks a node to join a head."""

    head: Annotated[bytes, msgspec.Meta(max_length=MOST_HEAD_BYTES)]
    """The description of the head, by its transport; see `JoinMethod`."""


T = TypeVar("T", LayerOffer, HeadCall)


def find_offers(secret: ClusterSecret) -> bytes:
    """Return the topic of all offers of a cluster."""
    return secret.derive_topic(OFFERS)


def find_calls(secret: ClusterSecret, signer: bytes, number: int) -> bytes:
    """Return the topic of the calls for a node, by the signer and the number of its offer."""
    return secret.derive_topic(CALLS, signer, number.to_bytes(8))


def read_offer(announcement: Announcement) -> LayerOffer | None:
    """Return the offer in an announcement, or None."""
    return _read(announcement, LayerOffer)


def read_call(announcement: Announcement) -> HeadCall | None:
    """Return the call in an announcement, or None."""
    return _read(announcement, HeadCall)


def _read(announcement: Announcement, kind: type[T]) -> T | None:
    try:
        return msgspec.msgpack.decode(announcement.body.content, type=kind)
    except (msgspec.DecodeError, ValueError):
        return None
