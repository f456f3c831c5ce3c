"""Messages of node services, which plugins define, beside the messages of core.

A message is a struct with a tag of its own. Tags below `RESERVED` belong to the distributions of this project. Any
other distribution has `TAGS_OF_ONE` tags, which follow from its name, so that nobody has to hand them out.
"""

from __future__ import annotations

import re
import zlib
from typing import ClassVar, Self

import msgspec

RESERVED = 256
"""The tags below this number belong to the distributions of this project; see docs/reference/wire.md."""
TAGS_OF_ONE = 256
"""The tags of each other distribution."""
RANGES = 2**22
"""The number of ranges; two distributions with the same one cannot be installed together."""


class ServiceMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message of a node service. A subclass adds the fields, and states its tag and its limits.

    An example::

        class Ping(ServiceMessage, frozen=True, tag=service_tag("my-distribution", 0)):
            number: Annotated[int, msgspec.Meta(ge=0)]

    Bound the length of every text, array and byte string by its type. A message holds no tensors.
    """

    most_bytes: ClassVar[int] = 2**16
    """The most bytes of its header in a frame. A larger one ends the link before any field is read."""
    most_per_s: ClassVar[float] = 100.0
    """The most messages per second on a link, on average; as many may come at once. More are dropped, and their
    sender is told."""

    def check(self) -> None:
        """Check the fields against each other, on arrival.

        Raises:
            ValueError: if they do not fit; the link ends then.
        """

    def tidy(self) -> Self:
        """Return the message with texts that are safe to show, before it is sent and when it has arrived."""
        return self


def service_tag(distribution: str, number: int) -> int:
    """Return a tag of a distribution; ``number`` counts its messages from 0.

    Raises:
        ValueError: if the distribution has no such tag.
    """
    if not 0 <= number < TAGS_OF_ONE:
        message = f"the number of a message is {number}, not 0 to {TAGS_OF_ONE - 1}"
        raise ValueError(message)
    name = re.sub(r"[-_.]+", "-", distribution).lower()
    return RESERVED + TAGS_OF_ONE * (zlib.crc32(name.encode()) % RANGES) + number
