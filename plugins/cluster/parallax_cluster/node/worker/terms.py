"""A node's knowledge of its cluster's coordinators: the latest term, and possible successors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from parallax_cluster.membership.succession import Candidate, ClusterId, KnownTerms, Term
from parallax_cluster.membership.term_proof import read_proof, write_proof
from parallax_cluster.wire.profile import Peer
from parallax_cluster.wire.succession import Succession
from parallax_core.api import HEAD, JoinedPeer, PeerLost, Takers
from parallax_core.api.node import Channel, replace_file
from parallax_core.node.worker.node_services import WorkerService

logger = logging.getLogger(__name__)


class TermRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A term as it is kept in a file."""

    proof: bytes = b""
    heads: tuple[Candidate, ...] = ()
    cluster: bytes = b""
    """Of a term without a proof, which an earlier version has kept."""
    number: int = 0


class HeadTerms(WorkerService):
    """Decides which coordinator a node follows and where to look for one. Its knowledge outlives the process."""

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
    def heads(self) -> list[str]:
        """The addresses of the coordinator of the latest term, and of those that may follow."""
        return [each.address for each in self._current.heads] if self._current is not None else []

    def choose_head(self, address: str) -> None:
        """Connect to the coordinator at an address from now on: the one named first, wherever else it was found."""
        self._place = self._places.get(address, Candidate(address, self._first_key))
        self._keys.pop(HEAD, None)
        self._keys.update({HEAD: self._place.key} if self._place.key else {})

    @asynccontextmanager
    async def joined(self, peer: JoinedPeer) -> AsyncIterator[Takers]:
        """Follow a coordinator of the newest term; tell an older one that it is, and leave it."""
        channel, refusals = peer.channel, set[asyncio.Task[None]]()
        assert isinstance(channel, Channel), "a session has no other"

        def note(told: Succession) -> None:
            if (newer := self.note(told, channel.key)) is not None:
                refusals.add(asyncio.create_task(refuse_head(channel, newer)))

        try:
            yield {Succession: note}
        finally:
            await asyncio.gather(*refusals)

    def note(self, told: Succession, key: bytes = b"") -> Term | None:
        """Note the term that the coordinator proves on a link with ``key``; return a newer one that refuses it.

        Raises:
            PeerLost: if it proves nothing.
        """
        term = self._read(told, key)
        self._known = KnownTerms({**self._known.terms, **_read(self._path)})  # other processes note terms, too
        newer = self._known.find_newer(term)
        if newer is None and self._known.terms.get(term.cluster) != term:
            self._known = self._known.note(term)
            _write(self._path, self._known)
        self._current = newer or term
        self._places.update({each.address: each for each in self._current.heads})
        return newer

    def _read(self, told: Succession, key: bytes) -> Term:
        try:
            proof = read_proof(told.proof)
        except ValueError as error:
            raise PeerLost(f"the coordinator tells a term and does not prove it: {error}") from error
        if key and proof.latest.key != key:
            raise PeerLost("the coordinator tells the term of another one as its own")
        standbys = (Candidate(head.address, head.key) for head in told.heads)
        return Term(proof.latest.term, proof.cluster, (self._place, *standbys), proof)


def show_term(term: Term) -> Succession:
    """Return the message that tells a term."""
    heads = tuple(Peer(HEAD, each.address, each.key) for each in term.heads)
    return Succession(write_proof(term.proof) if term.proof is not None else b"", heads)


def _read(path: Path | None) -> dict[ClusterId, Term]:
    if path is None:
        return {}
    with contextlib.suppress(OSError, ValueError):  # there is none, or it is damaged
        records = msgspec.msgpack.decode(path.read_bytes(), type=list[TermRecord])
        return {term.cluster: term for term in map(_read_record, records)}
    return {}


def _read_record(record: TermRecord) -> Term:
    if not record.proof:
        return Term(record.number, (record.cluster, b""), record.heads)
    proof = read_proof(record.proof)
    return Term(proof.latest.term, proof.cluster, record.heads, proof)


def _write_record(term: Term) -> TermRecord:
    if term.proof is None:
        return TermRecord(cluster=term.cluster[0], number=term.number, heads=term.heads)
    return TermRecord(proof=write_proof(term.proof), heads=term.heads)


def _write(path: Path | None, known: KnownTerms) -> None:
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.msgpack.encode([_write_record(term) for term in known.terms.values()]))
    except OSError as error:
        logger.warning("the term of the coordinator is not kept: %s", error)


async def refuse_head(channel: Channel, newer: Term) -> None:
    """Tell a coordinator that there is a newer one, and end the link to it."""
    logger.warning("coordinator is refused: there is one of term %d", newer.number)
    with contextlib.suppress(PeerLost):
        await channel.send(show_term(newer))
    await channel.leave()
