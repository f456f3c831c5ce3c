from __future__ import annotations

from parallax_cluster.membership.succession import MOST_KNOWN, Candidate, KnownTerms, Term
from parallax_cluster.membership.term_proof import TermProof
from plugins.cluster.tests.membership.terms import CLUSTER, OLD, ONE, STRANGER, TWO, Machine

FIRST = OLD.begin(ONE, TWO)
SECOND = ONE.take_over(FIRST, TWO)


def tell(proof: TermProof, *heads: Candidate) -> Term:
    return Term(proof.latest.term, proof.cluster, heads, proof)


def test_latest_term_of_a_cluster_is_known() -> None:
    known = KnownTerms().note(tell(FIRST))
    assert known.find_newer(tell(FIRST)) is None
    known = known.note(tell(SECOND, Candidate("tcp://one:1", b"key")))
    refused = known.find_newer(tell(FIRST))
    assert refused is not None
    assert (refused.number, refused.heads) == (2, (Candidate("tcp://one:1", b"key"),))
    assert known.note(tell(FIRST)) == known


def test_claim_of_another_clusters_number_refuses_nobody() -> None:
    liar = STRANGER.begin(term=10**9)
    known = KnownTerms().note(tell(liar)).note(tell(FIRST))
    assert known.find_newer(tell(FIRST)) is None
    assert known.find_newer(tell(liar)) is None


def test_standby_that_was_removed_is_refused_as_a_coordinator() -> None:
    known = KnownTerms().note(tell(OLD.renew(FIRST, TWO)))
    refused = known.find_newer(tell(SECOND))
    assert refused is not None
    assert refused.number == 1
    assert known.find_newer(tell(TWO.take_over(FIRST))) is None


def test_removal_is_remembered_by_whoever_heard_of_it_first() -> None:
    known = KnownTerms().note(tell(OLD.renew(FIRST, TWO))).note(tell(FIRST))
    assert known.find_newer(tell(SECOND)) is not None


def test_term_that_was_kept_without_a_proof_refuses_what_is_older() -> None:
    former = Term(3, (CLUSTER, b""), (Candidate("tcp://one:1"),))
    known = KnownTerms({former.cluster: former})
    assert known.find_newer(tell(OLD.begin(term=2))) == former
    assert known.find_newer(tell(OLD.begin(term=3))) is None
    assert known.find_newer(tell(OLD.begin(cluster=b"other"))) is None
    known = known.note(tell(OLD.begin(term=4)))
    assert known.terms[former.cluster] == former, "nothing that is told changes it"


def test_head_that_tells_of_many_clusters_makes_nobody_forget() -> None:
    known = KnownTerms().note(tell(SECOND))
    for number in range(2 * MOST_KNOWN):
        known = known.note(tell(STRANGER.begin(cluster=str(number).encode())))
    assert len(known.terms) == 2
    assert known.find_newer(tell(FIRST)) is not None
    for number in range(2 * MOST_KNOWN):
        known = known.note(tell(Machine(str(number)).begin()))
    assert len(known.terms) == MOST_KNOWN
