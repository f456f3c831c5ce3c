"""The term of this machine's coordinator: its accepted standbys, and whether another has taken over."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from nacl.signing import SigningKey

from parallax_cluster.membership.standby_state import AcceptedStandby, StandbyState
from parallax_cluster.membership.succession import Candidate
from parallax_cluster.membership.term_proof import (
    TermProof,
    begin_proof,
    judge,
    merge,
    read_proof,
    renew_proof,
    take_over,
    write_proof,
)
from parallax_cluster.node.membership.term_store import TermStore
from parallax_cluster.wire.succession import MOST_STANDBYS
from parallax_core.api import ParallaxError

logger = logging.getLogger(__name__)

NEWER_HINT = (
    "have this machine join or follow that one; if that is lost for good, `parallax run --new-term` serves here again"
)


class OwnTerm:
    """The state of this machine's coordinator, with the proof of its term. Belongs to one event loop."""

    def __init__(self, store: TermStore, signing: SigningKey, key: bytes, state: StandbyState) -> None:
        """Keep ``state`` in ``store``, and prove it by ``signing``; the coordinator proves ``key`` on its links."""
        self._store, self._signing, self._key = store, signing, key
        self.state = state
        """The state as it is kept; its plan and machines are those of the start."""
        self.proof = _read_own(state, signing, key)
        """Proves the term."""
        self._renew(state.standbys)

    @property
    def heads(self) -> tuple[Candidate, ...]:
        """Where the standbys would listen, and the keys that they prove."""
        return tuple(Candidate(each.address, each.key) for each in self.state.standbys if each.address)

    def accept(self, standby: AcceptedStandby) -> bool:
        """Accept a standby as a successor, dropping the oldest beyond a limit; return whether that is news."""
        places = [place for place, each in enumerate(self.state.standbys) if _is_same(each, standby)]
        standbys = [each for each in self.state.standbys if not _is_same(each, standby)]
        # Elsewhere it would be news each time.
        standbys.insert(places[0] if places else len(standbys), standby)
        return self._renew(standbys[-MOST_STANDBYS:])

    def keep_only(self, is_allowed: Callable[[AcceptedStandby], bool]) -> bool:
        """Withdraw standbys that are no longer allowed; return whether there were any."""
        allowed = [each for each in self.state.standbys if is_allowed(each)]
        for each in self.state.standbys:
            if each not in allowed:
                logger.info("standby may not take over any more machine=%s", each.machine)
        return self._renew(allowed)

    def hear(self, data: bytes) -> int:
        """Return the term of a coordinator that has taken over, as ``data`` proves, and keep that; 0: none has.

        Raises:
            ValueError: if they prove nothing.
        """
        told = read_proof(data)
        verdict = judge(self.proof, told)
        if verdict == "unproved":
            raise ValueError("it is of another cluster, or of a machine that may not take over")
        if verdict != "newer":
            return 0
        self._keep(msgspec.structs.replace(self.state, newer=write_proof(merge(self.proof, told))))
        return told.latest.term

    def _renew(self, standbys: list[AcceptedStandby]) -> bool:
        proof = renew_proof(self.proof, self._signing, self._key, [each.signer for each in standbys])
        data = write_proof(proof)
        state = msgspec.structs.replace(self.state, term=proof.latest.term, proof=data, standbys=standbys)
        self.proof = proof
        if is_changed := state != self.state:
            self._keep(state)
        return is_changed

    def _keep(self, state: StandbyState) -> None:
        self.state = state
        try:
            self._store.keep(state)
        except ParallaxError as error:
            logger.warning("%s; after a restart, standbys are accepted anew", error.message)


def open_term(store: TermStore, signing: SigningKey, key: bytes, model: str, *, is_new: bool) -> OwnTerm:
    """Return the term with which this machine's coordinator begins; ``is_new``: the next one, whoever has the last.

    Raises:
        ParallaxError: if another coordinator has taken over, unless ``is_new``; or the state cannot be read or kept.
    """
    state = store.begin(model)
    own = _read_own(state, signing, key)
    newer = read_proof(state.newer) if state.newer else own
    if judge(own, newer) != "newer":  # the key that signed the term is gone
        newer = own
    if is_new:
        proof = take_over(newer, signing, key)
        state = msgspec.structs.replace(state, term=proof.latest.term, proof=write_proof(proof), newer=b"")
        store.keep(state)
        logger.info("new term term=%d", state.term)
    else:
        check_newer(state)
    return OwnTerm(store, signing, key, state)


def check_newer(state: StandbyState) -> None:
    """Check that no other coordinator is known to have taken over from that of ``state``.

    Raises:
        ParallaxError: if one has.
    """
    if state.newer:
        raise ParallaxError(describe_newer(read_proof(state.newer).latest.term, state.term), NEWER_HINT)


def describe_newer(theirs: int, ours: int) -> str:
    """Say that another coordinator has taken over."""
    return f"another coordinator has taken over: its term is {theirs}, and that of this one was {ours}"


def _is_same(one: AcceptedStandby, other: AcceptedStandby) -> bool:
    """Return whether two standbys are one machine: it may have another key of either kind by now."""
    return one.signer == other.signer or bool(one.key and one.key == other.key)


def _read_own(state: StandbyState, signing: SigningKey, key: bytes) -> TermProof:
    """Return the proof in a state, or a new one if it is missing or signed by a lost key."""
    if state.proof:
        proof = read_proof(state.proof)
        if proof.latest.signer == bytes(signing.verify_key):
            return proof
        logger.warning("the key that signed the term is gone: nodes take this for another cluster of the same number")
    return begin_proof(signing, state.cluster, state.term, key)
