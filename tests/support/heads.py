"""Reaches into heads, for tests and measurements."""

from __future__ import annotations

from parallax_core.base.ids import RequestId
from parallax_core.engine.head import Head

NOBODY = RequestId("")


def drop_stored(head: Head) -> None:
    """Drop the stored prefixes, as many as the next step has room to drop."""
    while head._cache.evict(NOBODY) is not None:
        pass
