"""Which coordinator of a cluster counts: that of the newest term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

FIRST_TERM = 1
"""The term of the coordinator that began a cluster."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Where a coordinator listens, or would listen, and the key that it proves (empty: none is known)."""

    address: str
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Term:
    """The term of a coordinator, and those that may follow it."""

    cluster: bytes
    """A random number that names the cluster."""
    number: int
    """Counts the coordinators that the cluster has had."""
    heads: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownTerms:
    """The newest term of each cluster that a node has heard of; a value, as every change makes another one."""

    terms: Mapping[bytes, Term] = field(default_factory=dict)

    def find_newer(self, term: Term) -> Term | None:
        """Return the term because of which a coordinator of ``term`` is refused; None: it is not."""
        known = self.terms.get(term.cluster)
        return known if known is not None and known.number > term.number else None

    def note(self, term: Term) -> KnownTerms:
        """Return what is known once a coordinator has told its term; an older one changes nothing."""
        if self.find_newer(term) is not None:
            return self
        return replace(self, terms={**self.terms, term.cluster: term})


def take_over(term: Term) -> Term:
    """Return the term of a standby that takes over from the coordinator of ``term``."""
    return Term(term.cluster, term.number + 1)
