from __future__ import annotations

from pathlib import Path

import pytest

from parallax_cluster.membership.succession import Candidate, Term
from parallax_cluster.membership.term_proof import TermProof
from parallax_cluster.node.worker.terms import HeadTerms, show_term
from parallax_cluster.wire.succession import Succession
from parallax_core.base.errors import PeerLost
from plugins.cluster.tests.membership.terms import OLD, ONE, STRANGER, TWO, forge

FIRST, SECOND = "tcp://first:1", "tcp://second:1"
BEFORE = OLD.begin(ONE, TWO)
FORMER = bytes.fromhex(
    "9183a7636c7573746572c407636c7573746572a66e756d62657202a568656164739282a761646472657373ad7463703a2f2f66697273743a31a36b"
    "6579c4096669727374206b657982a761646472657373ae7463703a2f2f7365636f6e643a31a36b6579c40a7365636f6e64206b6579"
)
"""What a version of Parallax that proved no terms has kept: term 2 of a cluster."""


def tell(proof: TermProof, *heads: Candidate) -> Succession:
    return show_term(Term(proof.latest.term, proof.cluster, heads, proof))


TOLD = tell(BEFORE, Candidate(SECOND, b"second key"))
LATER = tell(ONE.take_over(BEFORE))


def test_node_knows_the_keys_of_the_standbys_it_was_told_of() -> None:
    keys = {"head": b"first key"}
    terms = HeadTerms(FIRST, keys)
    assert terms.heads == []
    assert terms.note(TOLD) is None
    assert terms.heads == [FIRST, SECOND]
    terms.choose_head(SECOND)
    assert keys == {"head": b"second key"}
    terms.choose_head("tcp://first:moved")
    assert keys == {"head": b"first key"}, "a head that was found elsewhere is the one that was named first"


def test_standby_that_is_named_no_more_is_not_turned_to() -> None:
    terms = HeadTerms(FIRST, {})
    terms.note(TOLD)
    assert terms.note(tell(OLD.renew(BEFORE, TWO))) is None
    assert terms.heads == [FIRST]


def test_keys_that_were_exchanged_by_hand_are_left_to_the_transport() -> None:
    keys: dict[str, bytes] = {}
    terms = HeadTerms(FIRST, keys)
    terms.note(TOLD)
    terms.choose_head(SECOND)
    assert keys == {"head": b"second key"}
    terms.choose_head(FIRST)
    assert keys == {}


def test_older_coordinator_is_refused_also_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "terms"
    terms = HeadTerms(FIRST, {"head": b"first key"}, path)
    assert terms.note(TOLD) is None
    terms.choose_head(SECOND)
    assert terms.note(LATER) is None
    newer = terms.note(TOLD)
    assert newer is not None
    assert newer.number == 2
    keys = {"head": b"first key"}
    again = HeadTerms(FIRST, keys, path)
    assert again.note(TOLD) == newer
    assert again.heads == [SECOND], "it knows where the newer one is"
    again.choose_head(SECOND)
    assert keys == {"head": b"second key"}
    assert again.note(LATER) is None
    assert again.note(tell(STRANGER.begin())) is None


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (Succession(b""), "does not prove"),
        (tell(forge(BEFORE, 0, term=10**6)), "signature is wrong"),
        (tell(STRANGER.claim(BEFORE, 10**6)), "not accepted"),
        (tell(STRANGER.begin()), "of another one as its own"),
    ],
)
def test_claim_that_is_not_proved_is_not_kept(told: Succession, reason: str, tmp_path: Path) -> None:
    terms = HeadTerms(FIRST, {}, tmp_path / "terms")
    assert terms.note(TOLD, OLD.key) is None
    kept = (tmp_path / "terms").read_bytes()
    with pytest.raises(PeerLost, match=reason):
        terms.note(told, OLD.key)
    assert (tmp_path / "terms").read_bytes() == kept
    assert HeadTerms(FIRST, {}, tmp_path / "terms").note(TOLD, OLD.key) is None


def test_node_that_has_met_a_liar_serves_its_coordinator_all_the_same(tmp_path: Path) -> None:
    liar = STRANGER.begin(term=10**9)
    assert liar.latest.cluster == BEFORE.latest.cluster, "it knows the number of the cluster"
    assert HeadTerms("tcp://liar:1", {}, tmp_path / "terms").note(tell(liar), STRANGER.key) is None
    assert HeadTerms(FIRST, {}, tmp_path / "terms").note(TOLD, OLD.key) is None


def test_processes_of_one_machine_know_what_the_others_have_heard(tmp_path: Path) -> None:
    one, other = (HeadTerms(FIRST, {}, tmp_path / "terms") for _ in range(2))
    assert one.note(LATER) is None
    assert other.note(tell(STRANGER.begin())) is None
    assert other.note(TOLD) is not None
    assert HeadTerms(FIRST, {}, tmp_path / "terms").note(TOLD) is not None


def test_file_of_a_version_that_proved_no_terms_still_refuses_what_is_older(tmp_path: Path) -> None:
    path = tmp_path / "terms"
    path.write_bytes(FORMER)
    keys = {"head": b"first key"}
    terms = HeadTerms(FIRST, keys, path)
    newer = terms.note(TOLD)
    assert newer is not None
    assert (newer.number, terms.heads) == (2, [FIRST, SECOND])
    assert show_term(newer).proof == b"", "of which nobody else is convinced"
    assert terms.note(tell(ONE.begin(term=2))) is None, "the coordinator of that term proves it from now on"
    assert HeadTerms(FIRST, keys, path).note(TOLD) == newer


@pytest.mark.parametrize("data", [b"", b"\x00\x01", b"\x91\x81\xa5proof\xc4\x03abc"])
def test_damaged_file_is_as_none(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "terms"
    path.write_bytes(data)
    assert HeadTerms(FIRST, {}, path).note(TOLD) is None


def test_folder_that_cannot_be_written_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert HeadTerms(FIRST, {}, tmp_path / "file" / "terms").note(TOLD) is None
    assert "the term of the coordinator is not kept" in caplog.text
