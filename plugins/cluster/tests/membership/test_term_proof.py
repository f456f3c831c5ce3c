from __future__ import annotations

import hashlib
from contextlib import suppress
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.membership.term_proof import (
    MOST_STATEMENTS,
    MOST_SUCCESSORS,
    TermProof,
    begin_proof,
    judge,
    merge,
    read_proof,
    take_over,
    write_proof,
)
from parallax_cluster.wire.succession import MOST_PROOF
from parallax_core.base.errors import ParallaxError
from parallax_core.contracts.value import LARGEST
from plugins.cluster.tests.membership.terms import CLUSTER, OLD, ONE, STRANGER, TWO, Machine, forge

FIRST = OLD.begin(ONE, TWO)
SECOND = ONE.take_over(FIRST, TWO)
THIRD = TWO.take_over(SECOND)


def read(proof: TermProof) -> TermProof:
    return read_proof(write_proof(proof))


@pytest.mark.parametrize("proof", [OLD.begin(), FIRST, SECOND, THIRD, OLD.begin(term=7)])
def test_proof_survives_being_written(proof: TermProof) -> None:
    assert read(proof) == proof


def test_standby_of_a_standby_has_the_next_term() -> None:
    assert [(each.statement.term, each.statement.signer) for each in THIRD.signed] == [
        (1, OLD.signer), (2, ONE.signer), (3, TWO.signer)
    ]  # fmt: skip
    assert (THIRD.cluster, THIRD.latest.key) == ((CLUSTER, OLD.signer), TWO.key)
    assert judge(FIRST, SECOND) == judge(SECOND, THIRD) == judge(FIRST, THIRD) == "newer"
    assert judge(THIRD, SECOND) == judge(THIRD, FIRST) == "older"
    assert judge(THIRD, THIRD) == "same"


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        (STRANGER.claim(FIRST, 2), "not accepted the key of the next one"),
        (TWO.claim(OLD.begin(ONE), 2), "not accepted the key of the next one"),
        (ONE.claim(FIRST, 2, b"other"), "different clusters"),
        (ONE.claim(OLD.begin(ONE, term=2), 1), "earlier than"),
        (TermProof(SECOND.signed[1:]), "not that of the root"),
        (TermProof(()), "one statement of each"),
        (TermProof((*FIRST.signed, *FIRST.signed)), "one statement of each"),
        (forge(FIRST, 0, term=9), "signature is wrong"),
        (forge(FIRST, 0, key=STRANGER.key), "signature is wrong"),
        (forge(OLD.begin(), 0, successors=(STRANGER.signer,)), "signature is wrong"),
        (STRANGER.claim(forge(FIRST, 0, successors=(STRANGER.signer,)), 2), "signature is wrong"),
        (forge(SECOND, 1, term=9), "signature is wrong"),
        (forge(SECOND, 1, root=STRANGER.signer), "different clusters"),
    ],
)
def test_what_nobody_accepted_or_signed_proves_nothing(proof: TermProof, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(proof)


def test_signatures_of_other_statements_of_the_same_key_prove_nothing() -> None:
    signed = STRANGER.signing.sign(msgspec.msgpack.encode(STRANGER.begin().latest))
    bare = msgspec.structs.replace(STRANGER.begin().signed[0], signature=signed.signature)
    with pytest.raises(ValueError, match="signature is wrong"):
        read(TermProof((bare,)))


def test_proof_of_another_cluster_says_nothing_of_this_one() -> None:
    assert judge(FIRST, STRANGER.begin(term=99)) == "unproved", "it has the same number, and another root"
    assert judge(FIRST, OLD.begin(cluster=b"other", term=99)) == "unproved"


def test_standby_that_was_removed_may_not_take_over() -> None:
    without = OLD.renew(FIRST, TWO)
    assert without.latest.version == FIRST.latest.version + 1
    assert judge(without, SECOND) == "unproved", "its statement is from before"
    assert judge(without, TWO.take_over(FIRST)) == "newer", "the other one may, whichever statement it knows"
    assert judge(FIRST, SECOND) == "newer", "who has not heard of the removal cannot know"


def test_removed_standby_cannot_go_around_by_an_older_way() -> None:
    gone = TWO.renew(TWO.take_over(SECOND, STRANGER))
    around = TermProof((*FIRST.signed, TWO.take_over(SECOND, STRANGER).signed[-1]))
    assert judge(gone, read(STRANGER.claim(around, 4))) == "unproved"


def test_old_statement_of_a_coordinator_does_not_come_back() -> None:
    again = OLD.take_over(SECOND, ONE, TWO)
    assert (again.latest.term, len(again.signed)) == (3, 1), "it has the place that it had"
    assert judge(SECOND, again) == "newer"
    assert judge(again, SECOND) == "older"
    assert judge(again, read(TWO.claim(SECOND, 9))) == "unproved", "its way leads over a term that is over"
    later = ONE.take_over(again)
    assert (judge(again, later), later.latest.term, len(later.signed)) == ("newer", 4, 2)


def test_of_two_promoted_at_once_all_choose_the_same() -> None:
    proofs = [each.take_over(FIRST) for each in (ONE, TWO)]
    lesser, greater = sorted(proofs, key=lambda each: each.latest.signer)
    assert lesser.latest.term == greater.latest.term == 2
    assert (judge(lesser, greater), judge(greater, lesser)) == ("newer", "older")
    again = next(each for each in (ONE, TWO) if each.signer == lesser.latest.signer).take_over(greater)
    assert (again.latest.term, judge(greater, again)) == (3, "newer"), "the other one is no dead end"


@pytest.mark.parametrize(("server", "standby"), [(ONE, TWO), (TWO, ONE)])
def test_of_a_promoted_standby_and_a_server_that_has_not_heard_of_it_all_choose_the_same(
    server: Machine, standby: Machine
) -> None:
    before = server.begin(standby)
    proofs = [server.take_over(before, standby), standby.take_over(before)]
    lesser, greater = sorted(proofs, key=lambda each: each.latest.signer)
    assert lesser.latest.term == greater.latest.term == 2
    assert (judge(lesser, greater), judge(greater, lesser)) == ("newer", "older")
    both = read(merge(lesser, greater))
    assert (both.rank, server.take_over(both).latest.term) == (greater.rank, 3), "the other one is no dead end"


def test_machine_that_was_a_coordinator_keeps_its_successors() -> None:
    assert take_over(SECOND, OLD.signing, OLD.key).latest.successors == FIRST.latest.successors


@pytest.mark.parametrize("proof", [FIRST, OLD.begin(term=LARGEST)])
def test_who_was_not_accepted_cannot_take_over(proof: TermProof) -> None:
    with pytest.raises(ParallaxError, match=r"no coordinator .* has accepted this machine") as caught:
        STRANGER.take_over(proof)
    assert "begin a new cluster" in caught.value.hint
    if proof is not FIRST:
        with pytest.raises(ParallaxError, match="as many coordinators"):
            OLD.take_over(proof)


def test_terms_of_a_cluster_end_somewhere() -> None:
    machines = [Machine(str(number)) for number in range(MOST_STATEMENTS + 1)]
    proof = machines[0].begin(machines[1])
    for machine, following in pairwise(machines[1:]):
        proof = machine.take_over(proof, following, *[Machine(f"other {each}") for each in range(MOST_SUCCESSORS - 1)])
        proof = machine.renew(proof, *[Machine(f"other {each}") for each in range(MOST_SUCCESSORS - 1)], following)
    assert len(write_proof(proof)) < MOST_PROOF
    assert read(proof) == proof
    with pytest.raises(ParallaxError, match="as many coordinators"):
        machines[-1].take_over(proof)
    assert len(machines[0].take_over(proof).signed) == 1, "who was there before may"


def test_merged_proof_has_the_latest_of_both() -> None:
    renewed, later = OLD.renew(FIRST, TWO, ONE), ONE.renew(SECOND)
    merged = merge(renewed, later)
    assert read(merged).signed == (*renewed.signed, later.signed[-1])
    assert merge(merged, SECOND) == merged
    assert judge(merged, TWO.take_over(SECOND)) == "unproved"


def test_same_statement_is_no_news() -> None:
    assert OLD.renew(FIRST, ONE, TWO) == FIRST
    many = [Machine(str(number)) for number in range(MOST_SUCCESSORS + 3)]
    assert OLD.renew(FIRST, *many).latest.successors == tuple(each.signer for each in many[3:])


@given(st.binary(max_size=300))
def test_bytes_of_no_meaning_prove_nothing(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_proof(data)


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_no_byte_of_a_proof_can_be_changed(place: int, change: int) -> None:
    data = bytearray(write_proof(THIRD))
    data[place % len(data)] ^= change
    with suppress(ValueError):
        assert read_proof(bytes(data)) == THIRD, "written otherwise, it says the same"


def test_proof_that_is_too_long_is_not_read() -> None:
    with pytest.raises(ValueError, match="at most"):
        read_proof(bytes(MOST_PROOF + 1))


def test_proof_is_that_of_other_versions() -> None:
    data = write_proof(begin_proof(OLD.signing, b"c" * 16, 1, b"k"))
    assert hashlib.sha256(data).hexdigest().startswith("29fb89abdc2685809432ac4da52fda94")
