from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parallax_core.cluster.membership.succession import Candidate, KnownTerms, Term, take_over

clusters = st.sampled_from((b"one", b"two"))
terms = st.builds(Term, clusters, st.integers(0, 9), st.just((Candidate("tcp://a:1", b"key"),)))


@given(st.lists(terms))
def test_newest_term_of_each_cluster_counts_whatever_the_order(told: list[Term]) -> None:
    known = KnownTerms()
    for index, term in enumerate(told):
        before = [other.number for other in told[:index] if other.cluster == term.cluster]
        assert (known.find_newer(term) is None) == (term.number >= max(before, default=0))
        known = known.note(term)
    newest = {cluster: max(each.number for each in told if each.cluster == cluster) for cluster in known.terms}
    assert {cluster: term.number for cluster, term in known.terms.items()} == newest


@given(st.lists(terms), terms)
def test_of_two_coordinators_a_node_follows_at_most_one(told: list[Term], one: Term) -> None:
    """Whoever takes over is followed from then on, and the one before no more."""
    known = KnownTerms()
    for term in (*told, one):
        known = known.note(term)
    newest = known.terms[one.cluster]
    successor = take_over(newest)
    assert known.find_newer(successor) is None
    after = known.note(successor)
    assert after.find_newer(newest) == successor
    assert after.note(newest) == after


def test_standbys_of_the_same_term_are_noted() -> None:
    first = Term(b"c", 1)
    later = Term(b"c", 1, (Candidate("tcp://b:1"),))
    assert KnownTerms().note(first).note(later).terms[b"c"].heads == (Candidate("tcp://b:1"),)
