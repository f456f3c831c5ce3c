"""Messages of a rendezvous, where nodes and heads that have the same join code find each other.

A client makes a link whose `Hello` says so, follows topics (`Follow`), and brings announcements (`Announced`). It is
sent all announcements of its topics, and each new one. What is in them is defined by
`parallax_cluster.membership.announcement`; their signatures are checked wherever they arrive.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from parallax_core.api import ServiceMessage

MOST_TOPICS = 64
"""The most topics that a client follows."""
MOST_ANNOUNCEMENT_BYTES = 2048
"""The most bytes of an announcement."""
TOPIC_BYTES = 16

Topic = Annotated[bytes, msgspec.Meta(min_length=TOPIC_BYTES, max_length=TOPIC_BYTES)]
"""The audience of announcements; opaque to nodes that do not know how it was derived."""


class Follow(ServiceMessage, frozen=True, tag=40):
    """Sent by a client: the topics whose announcements it wants from now on, instead of those it named before."""

    topics: Annotated[tuple[Topic, ...], msgspec.Meta(max_length=MOST_TOPICS)]


class Announced(ServiceMessage, frozen=True, tag=41):
    """An announcement, in both directions."""

    most_per_s: ClassVar[float] = 10_000.0  # a client is sent all announcements of its topics at once

    announcement: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_ANNOUNCEMENT_BYTES)]
