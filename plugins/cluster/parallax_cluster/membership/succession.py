"""Chooses the coordinator of a cluster that a node follows: the one with the latest proved term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from parallax_cluster.membership.term_proof import TermProof, judge, merge

FIRST_TERM = 1
"""The term of the coordinator that began a cluster."""
MOST_KNOWN = 64
"""The most clusters whose terms a node keeps."""

ClusterId = tuple[bytes, bytes]
"""The number of a cluster, and the key of the coordinator that began it; see `TermProof.cluster`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Where a coordinator listens, or would listen, and the key that it proves (empty: none is known)."""

    address: str
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Term:
    """The term of a coordinator, and those that may follow it."""

    number: int
    """Counts the coordinators that the cluster has had."""
    cluster: ClusterId
    heads: tuple[Candidate, ...] = ()
    proof: TermProof | None = None
    """None: it was kept by a version of Parallax that proved no terms. It refuses what is older, and proves nothing."""


@dataclass(frozen=True, slots=True)
class KnownTerms:
    """The latest term of each cluster that was proved to a node; a value, as every change makes another one."""

    terms: Mapping[ClusterId, Term] = field(default_factory=dict)

    def find_newer(self, told: Term) -> Term | None:
        """Return the term because of which a coordinator is refused that tells of its own; None: it is not."""
        unproved = self.terms.get((told.cluster[0], b""))
        if unproved is not None and unproved.number > told.number:
            return unproved
        known = self.terms.get(told.cluster)
        if known is None or known.proof is None or told.proof is None:
            return None
        return known if judge(known.proof, told.proof) in {"older", "unproved"} else None

    def note(self, told: Term) -> KnownTerms:
        """Return what is known once a coordinator has proved its term; one that is refused changes nothing."""
        if self.find_newer(told) is not None:
            return self
        known = self.terms.get(told.cluster)
        if known is not None and known.proof is not None and told.proof is not None:
            told = replace(told, proof=merge(known.proof, told.proof))
        others = [each for each in self.terms.items() if not _gives_way(each[1], told)]
        return replace(self, terms=dict([*others, (told.cluster, told)][-MOST_KNOWN:]))


def _gives_way(term: Term, told: Term) -> bool:
    """Return whether a term is forgotten when one is told: that is of the same cluster, or of the same coordinator."""
    if term.proof is None or told.proof is None:
        return term.cluster == told.cluster
    is_same_head = bool(told.proof.latest.key) and term.proof.latest.key == told.proof.latest.key
    return term.cluster == told.cluster or is_same_head
