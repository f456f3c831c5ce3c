from __future__ import annotations

from pathlib import Path

from parallax_core.cluster.membership.succession import Candidate, Term
from parallax_core.node.worker.terms import HeadTerms, show_term

FIRST, SECOND = "tcp://first:1", "tcp://second:1"
TOLD = show_term(Term(b"c", 1, (Candidate(SECOND, b"second key"),)))
LATER = show_term(Term(b"c", 2))


def test_node_knows_the_keys_of_the_standbys_it_was_told_of() -> None:
    keys = {"head": b"first key"}
    terms = HeadTerms(FIRST, keys)
    assert terms.others == []
    assert terms.note(TOLD) is None
    assert terms.others == [FIRST, SECOND]
    terms.choose(SECOND)
    assert keys == {"head": b"second key"}
    terms.choose("tcp://first:moved")
    assert keys == {"head": b"first key"}, "a head that was found elsewhere is the one that was named first"


def test_keys_that_were_exchanged_by_hand_are_left_to_the_transport() -> None:
    keys: dict[str, bytes] = {}
    terms = HeadTerms(FIRST, keys)
    terms.note(TOLD)
    terms.choose(SECOND)
    assert keys == {"head": b"second key"}
    terms.choose(FIRST)
    assert keys == {}


def test_older_coordinator_is_refused_also_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "terms"
    terms = HeadTerms(FIRST, {"head": b"first key"}, path)
    assert terms.note(TOLD) is None
    terms.choose(SECOND)
    assert terms.note(LATER) is None
    newer = terms.note(TOLD)
    assert newer is not None
    assert (newer.cluster, newer.term) == (b"c", 2)
    keys = {"head": b"first key"}
    again = HeadTerms(FIRST, keys, path)
    assert again.note(TOLD) == newer
    assert again.others == [SECOND], "it knows where the newer one is"
    again.choose(SECOND)
    assert keys == {"head": b"second key"}
    assert again.note(LATER) is None
    assert again.note(show_term(Term(b"other", 1))) is None


def test_damaged_file_and_one_that_cannot_be_written_are_as_none(tmp_path: Path) -> None:
    path = tmp_path / "terms"
    path.write_bytes(b"\xff")
    assert HeadTerms(FIRST, {}, path).note(TOLD) is None
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert HeadTerms(FIRST, {}, blocked / "terms").note(TOLD) is None
