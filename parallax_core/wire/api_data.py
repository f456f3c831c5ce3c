"""The data on a link for ``api``: the bytes of a client's connection, in both directions.

A node that has joined makes such a link for each client, and the head answers on it as it answers a connection to its
API. Either end closes the link to end the connection. Bytes wait while the receiver has unread frames, as everywhere.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_API_DATA = 2**15
"""The most bytes of a message."""


class ApiData(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=26):
    """The next bytes of a connection."""

    data: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MOST_API_DATA)]
