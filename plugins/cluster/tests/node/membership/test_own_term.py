from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from parallax_cluster.membership.standby_state import AcceptedStandby, StandbyState, write_state
from parallax_cluster.membership.succession import Candidate
from parallax_cluster.membership.term_proof import judge, read_proof, write_proof
from parallax_cluster.node.membership.own_term import OwnTerm, open_term
from parallax_cluster.node.membership.term_store import TermStore
from parallax_core.base.errors import ParallaxError
from plugins.cluster.tests.membership.terms import OLD, ONE, STRANGER, TWO, Machine

FORMER = bytes.fromhex(
    "88a7636c7573746572c41063636363636363636363636363636363a47465726d02a56d6f64656ca96f72672f6d6f64656ca873657474696e677387"
    "a56474797065a46175746fa76261636b656e64c0a9706c6163656d656e74a6736561726368a96f626a656374697665aa7468726f756768707574"
    "ab636f6e63757272656e637908ad70726f6d70745f746f6b656e73cd0200ad6f75747075745f746f6b656e73cd0100a86d616368696e657381a464"
    "65736bc4206b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6ba4706c616e81009197a66465736b2f31001eff001ecb"
    "3ff0000000000000a86d656d6f7269657381a66465736b2f3105ac6f746865725f6d6f64656c7391a96f72672f6f74686572"
)
"""What a coordinator of a version that proved no terms has kept, which took over in term 2."""


@dataclass
class Place:
    """The file of a coordinator."""

    path: Path
    machine: Machine = OLD
    store: TermStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = TermStore(self.path)

    def open(self, *, is_new: bool = False) -> OwnTerm:
        return open_term(self.store, self.machine.signing, self.machine.key, "model", is_new=is_new)

    def find(self) -> StandbyState:
        found = self.store.find()
        assert found is not None
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "coordinator")


def stand_by(machine: Machine, address: str = "tcp://there:1") -> AcceptedStandby:
    return AcceptedStandby(machine=machine.name, key=machine.key, signer=machine.signer, address=address)


def test_coordinator_begins_with_a_term_that_it_can_prove(place: Place) -> None:
    own = place.open()
    assert (own.state.term, own.proof.latest.signer, own.proof.latest.key) == (1, OLD.signer, OLD.key)
    assert read_proof(place.find().proof) == own.proof
    assert place.open().proof == own.proof


def test_standbys_are_accepted_for_good_until_their_keys_are_taken_back(place: Place) -> None:
    own = place.open()
    assert own.accept(stand_by(ONE))
    assert own.accept(stand_by(TWO))
    assert not own.accept(stand_by(ONE)), "it follows again"
    own = place.open()
    assert own.heads == (Candidate("tcp://there:1", ONE.key), Candidate("tcp://there:1", TWO.key))
    assert list(own.proof.latest.successors) == [ONE.signer, TWO.signer]
    before = own.proof
    assert not own.keep_only(lambda _: True)
    assert own.keep_only(lambda each: each.key != ONE.key)
    assert list(own.proof.latest.successors) == [TWO.signer]
    assert judge(own.proof, ONE.take_over(before)) == "unproved"
    assert place.open().proof == own.proof


def test_standby_that_has_other_keys_by_now_is_the_same_machine(place: Place) -> None:
    own = place.open()
    own.accept(stand_by(ONE))
    own.accept(stand_by(TWO))
    own.accept(msgspec.structs.replace(stand_by(ONE), signer=STRANGER.signer, address="tcp://elsewhere:1"))
    own.accept(msgspec.structs.replace(stand_by(TWO), key=STRANGER.key))
    assert list(own.proof.latest.successors) == [STRANGER.signer, TWO.signer]
    assert own.heads == (Candidate("tcp://elsewhere:1", ONE.key), Candidate("tcp://there:1", STRANGER.key))


def test_standby_whose_address_is_not_known_is_named_to_nobody(place: Place) -> None:
    own = place.open()
    own.accept(stand_by(ONE, ""))
    assert own.heads == ()
    assert list(own.proof.latest.successors) == [ONE.signer]


def test_of_too_many_standbys_the_oldest_is_forgotten(place: Place) -> None:
    own = place.open()
    for number in range(20):
        own.accept(stand_by(Machine(str(number))))
    assert [each.machine for each in own.state.standbys] == [str(number) for number in range(4, 20)]


def test_only_what_a_standby_proves_counts_as_a_newer_coordinator(place: Place) -> None:
    own = place.open()
    own.accept(stand_by(ONE))
    with pytest.raises(ValueError, match="not accepted"):
        own.hear(write_proof(STRANGER.claim(own.proof, 10**9, own.state.cluster)))
    with pytest.raises(ValueError, match="another cluster"):
        own.hear(write_proof(STRANGER.begin(cluster=own.state.cluster, term=10**9)))
    with pytest.raises(ValueError, match="truncated"):
        own.hear(b"")
    assert own.hear(write_proof(own.proof)) == 0
    assert place.open().proof == own.proof
    assert own.hear(write_proof(ONE.take_over(own.proof))) == 2


def test_coordinator_that_was_taken_over_from_says_so_at_once_and_serves_with_a_new_term(place: Place) -> None:
    own = place.open()
    own.accept(stand_by(ONE))
    newer = ONE.take_over(own.proof)
    own.hear(write_proof(newer))
    with pytest.raises(ParallaxError, match="its term is 2, and that of this one was 1") as caught:
        place.open()
    assert "parallax run --new-term" in caught.value.hint
    again = place.open(is_new=True)
    assert (again.state.term, judge(newer, again.proof)) == (3, "newer")
    assert again.proof.latest.successors == (ONE.signer,), "it has not lost its standbys"
    assert place.open().proof == again.proof
    assert place.open(is_new=True).state.term == 4


def test_coordinator_that_took_over_serves_again_after_the_next_one_was_lost(place: Place, tmp_path: Path) -> None:
    first = ONE.begin(OLD)
    state = StandbyState(cluster=b"cluster", term=2, model="model", proof=write_proof(OLD.take_over(first, TWO)))
    place.store.keep(msgspec.structs.replace(state, standbys=[stand_by(TWO)]))
    newer = TWO.take_over(place.open().proof)
    place.open().hear(write_proof(newer))
    again = place.open(is_new=True)
    assert (again.state.term, again.proof.signers, judge(newer, again.proof)) == (4, [ONE.signer, OLD.signer], "newer")


def test_state_of_a_version_that_proved_no_terms_goes_on_with_its_term(place: Place) -> None:
    place.path.write_bytes(FORMER)
    own = place.open()
    assert (own.state.cluster, own.state.term, own.state.model) == (b"c" * 16, 2, "org/model")
    assert (own.state.machines, own.state.other_models) == ({"desk": b"k" * 32}, ["org/other"])
    assert (own.proof.latest.term, own.proof.latest.cluster) == (2, b"c" * 16)
    assert write_state(place.find()) == write_state(own.state)


def test_key_that_is_gone_ends_the_proofs_and_not_the_coordinator(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    own = place.open()
    own.accept(stand_by(ONE))
    own.hear(write_proof(ONE.take_over(own.proof)))
    place.machine = TWO
    again = place.open(is_new=True)
    assert "the key that signed the term is gone" in caplog.text
    assert (again.proof.signers, again.state.term) == ([TWO.signer], 2)


def test_key_of_the_links_is_part_of_the_statement(place: Place) -> None:
    before = place.open().proof
    own = OwnTerm(place.store, OLD.signing, b"another", place.find())
    assert (own.proof.latest.key, judge(before, own.proof)) == (b"another", "same")


def test_disk_that_is_full_costs_no_standby(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def keep(self: TermStore, state: StandbyState) -> None:
        raise ParallaxError("the state of the coordinator cannot be kept: no space")

    own = place.open()
    monkeypatch.setattr(TermStore, "keep", keep)
    assert own.accept(stand_by(ONE))
    assert list(own.proof.latest.successors) == [ONE.signer]
    assert "cannot be kept: no space; after a restart, standbys are accepted anew" in caplog.text
