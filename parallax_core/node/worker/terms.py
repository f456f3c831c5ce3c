"""What a node knows of the coordinators of its cluster: the newest term, and where those are that may follow."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from parallax_core.base.errors import PeerLost
from parallax_core.base.ids import HEAD
from parallax_core.cluster.membership.succession import Candidate, KnownTerms, Term
from parallax_core.node.channel import Channel
from parallax_core.wire.profile import Peer
from parallax_core.wire.succession import Succession

logger = logging.getLogger(__name__)


class HeadTerms:
    """Decides which coordinator a node follows, and where it looks for one. What it knows outlives its process."""

    def __init__(self, address: str, keys: dict[str, bytes], path: Path | None = None) -> None:
        """Begin with the coordinator at ``address``.

        Args:
            address: of the coordinator that the user named.
            keys: `TransportPlan.heads`, in which the key of the coordinator to connect to is kept.
            path: the file of what is known; None: it is not kept.
        """
        self._first_key = keys.get(HEAD, b"")
        self._place = Candidate(address, self._first_key)
        self._places = {address: self._place}
        """The coordinators that were heard of, by address."""
        self._keys = keys
        self._path = path
        self._known = KnownTerms(_read(path))
        self._current: Term | None = None

    @property
    def others(self) -> list[str]:
        """The addresses of the coordinator of the newest term, and of those that may follow."""
        return [each.address for each in self._current.heads] if self._current is not None else []

    def choose(self, address: str) -> None:
        """Connect to the coordinator at an address from now on: the one named first, wherever else it was found."""
        self._place = self._places.get(address, Candidate(address, self._first_key))
        self._keys.pop(HEAD, None)
        self._keys.update({HEAD: self._place.key} if self._place.key else {})

    def note(self, told: Succession) -> Succession | None:
        """Note what the coordinator tells; return the newer term that there is, if it is to be refused."""
        standbys = (Candidate(head.address, head.key) for head in told.heads)
        term = Term(told.cluster, told.term, (self._place, *standbys))
        newer = self._known.find_newer(term)
        if newer is None and self._known.terms.get(term.cluster) != term:
            self._known = self._known.note(term)
            _write(self._path, self._known)
        self._current = newer or term
        self._places.update({each.address: each for each in self._current.heads})
        return show_term(newer) if newer is not None else None


def show_term(term: Term) -> Succession:
    """Return the message that tells a term."""
    return Succession(term.cluster, term.number, tuple(Peer(HEAD, each.address, each.key) for each in term.heads))


def _read(path: Path | None) -> dict[bytes, Term]:
    if path is None:
        return {}
    with contextlib.suppress(OSError, msgspec.DecodeError):  # there is none, or it is damaged
        return {term.cluster: term for term in msgspec.msgpack.decode(path.read_bytes(), type=list[Term])}
    return {}


def _write(path: Path | None, known: KnownTerms) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_bytes(msgspec.msgpack.encode(list(known.terms.values())))
        draft.replace(path)
    except OSError as error:
        logger.warning("the term of the coordinator is not kept: %s", error)


async def refuse_head(channel: Channel, newer: Succession) -> None:
    """Tell a coordinator that there is a newer one, and end the link to it."""
    logger.warning("coordinator is refused: there is one of term %d", newer.term)
    with contextlib.suppress(PeerLost):
        await channel.send(newer)
    await channel.leave()
