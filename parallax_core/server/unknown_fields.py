"""Notes fields of a body without effect, and handles unknown ones: refuses the first or drops all."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar

MOST_NAMED = 20
"""The largest number of ignored fields that are named."""
IGNORED: ContextVar[dict[str, None] | None] = ContextVar("IGNORED", default=None)
"""The unknown fields of the current request that were ignored; None: unknown fields are refused."""
LEFT_OUT: ContextVar[dict[str, None]] = ContextVar("LEFT_OUT")
"""What is left out of the current request, whether unknown fields are refused or not. Not set: that is not told."""


def drop_unknown(body: dict[str, object], known: Collection[str], place: str) -> dict[str, object]:
    """Return the fields to validate of an object, which is at the path ``place`` in the body.

    It drops and notes unknown fields if they may be ignored. Otherwise it keeps the first one, to be refused: errors
    for a million fields would take too long.
    """
    unknown = [name for name in body if name not in known]
    if not unknown:
        return body
    if (ignored := IGNORED.get()) is None:
        return {name: value for name, value in body.items() if name in known or name == unknown[0]}
    ignored.update(dict.fromkeys(f"{place}{name}" for name in unknown))
    return {name: value for name, value in body.items() if name in known}
