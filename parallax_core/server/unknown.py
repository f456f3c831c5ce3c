"""Fields of a body that nobody knows: the first is refused, or all are dropped and named."""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar

MOST_NAMED = 20
"""The most fields that are named as ignored."""
IGNORED: ContextVar[dict[str, None] | None] = ContextVar("IGNORED", default=None)
"""The fields of the request at hand that were ignored; None where none may be."""


def drop_unknown(body: dict[str, object], known: Collection[str], place: str) -> dict[str, object]:
    """Return what is to be looked at of an object, which lies at ``place`` in the body.

    Unknown fields are dropped and noted, if they may be ignored. Otherwise the first of them stays, to be refused: to
    complain of a million takes so long that nobody else is answered.
    """
    unknown = [name for name in body if name not in known]
    if not unknown:
        return body
    if (ignored := IGNORED.get()) is None:
        return {name: value for name, value in body.items() if name in known or name == unknown[0]}
    ignored.update(dict.fromkeys(f"{place}{name}" for name in unknown))
    return {name: value for name, value in body.items() if name in known}
