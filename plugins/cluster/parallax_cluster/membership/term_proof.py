"""Proves which coordinator of a cluster counts, by statements that are signed.

The coordinator of a term states the term, and the keys of the machines that may take over from it (`TermStatement`).
Whoever takes over states a later term. The coordinator that began the cluster is known by its own key, the root. So a
`TermProof`, the statements from the root to the coordinator that counts, can be checked whoever tells it. No statement
has a time: clocks do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from parallax_cluster.wire.succession import MOST_PROOF
from parallax_core.api import LARGEST, Count, ParallaxError

SIGNER_BYTES, SIGNATURE_BYTES = 32, 64
MOST_SUCCESSORS = 16
"""The most machines that may take over from a coordinator."""
MOST_STATEMENTS = 64
"""The most statements of a proof: the most machines that have been coordinators one after the other."""
PURPOSE = b"parallax term\0"
"""Signed before each statement, so that the key can sign other things, too."""
NEW_CLUSTER_HINT = "to begin a new cluster, move PARALLAX_HOME/cluster/coordinator away; machines join it by a new code"

Signer = Annotated[bytes, msgspec.Meta(min_length=SIGNER_BYTES, max_length=SIGNER_BYTES)]
"""A public key (Ed25519)."""
Verdict = Literal["same", "newer", "older", "unproved"]


class TermStatement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a coordinator states of its term."""

    cluster: Annotated[bytes, msgspec.Meta(max_length=64)]
    """A random number that names the cluster."""
    root: Signer
    """The key of the coordinator that began the cluster."""
    term: Count
    """Counts the coordinators that the cluster has had."""
    version: Count
    """Counts the statements of this coordinator for this term: the latest one counts."""
    signer: Signer
    """The key that signs this."""
    key: Annotated[bytes, msgspec.Meta(max_length=256)]
    """The key that the coordinator proves on its links, as its transport writes it; empty without keys."""
    successors: Annotated[tuple[Signer, ...], msgspec.Meta(max_length=MOST_SUCCESSORS)] = ()
    """The keys that may sign a later term."""

    @property
    def age(self) -> tuple[int, int]:
        """Of two statements of one signer, the one for which this is greater is the later one."""
        return self.term, self.version


class SignedStatement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A statement with its signature."""

    statement: TermStatement
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True)
class TermProof:
    """Statements that lead from the root of a cluster to the coordinator that counts; at least one, all checked."""

    signed: tuple[SignedStatement, ...]

    @property
    def latest(self) -> TermStatement:
        """The statement of the coordinator that counts."""
        return self.signed[-1].statement

    @property
    def cluster(self) -> tuple[bytes, bytes]:
        """The identity of the cluster: its number, and its root, which others cannot claim."""
        return self.latest.cluster, self.latest.root

    @property
    def rank(self) -> tuple[int, bytes]:
        """Of two coordinators of one cluster, the one for which this is greater counts.

        Two standbys may be promoted at once. Their terms are equal then, and their keys decide.
        """
        return self.latest.term, self.latest.signer

    @property
    def signers(self) -> list[bytes]:
        """The keys of the coordinators, in order."""
        return [each.statement.signer for each in self.signed]


def begin_proof(signing: SigningKey, cluster: bytes, term: int, key: bytes) -> TermProof:
    """Return the proof of a coordinator that begins a cluster, and proves ``key`` on its links."""
    own = bytes(signing.verify_key)
    return TermProof((_sign(signing, TermStatement(cluster, own, term, 0, own, key)),))


def renew_proof(proof: TermProof, signing: SigningKey, key: bytes, successors: Iterable[bytes]) -> TermProof:
    """Return the proof of the coordinator that counts, with other successors or another key; unchanged if they are."""
    latest, wanted = proof.latest, tuple(successors)[-MOST_SUCCESSORS:]
    if (latest.key, latest.successors) == (key, wanted):
        return proof
    changed = msgspec.structs.replace(latest, key=key, successors=wanted, version=latest.version + 1)
    return TermProof((*proof.signed[:-1], _sign(signing, changed)))


def take_over(proof: TermProof, signing: SigningKey, key: bytes) -> TermProof:
    """Return the proof of the next term, whose coordinator signs by ``signing`` and proves ``key`` on its links.

    A machine that has been a coordinator keeps its place in the proof, and its successors; one that has not follows
    whoever has accepted it last.

    Raises:
        ParallaxError: if no coordinator has accepted this key, or no further term is possible.
    """
    own, before = bytes(signing.verify_key), proof.signed
    places = [place for place, each in enumerate(before) if own in each.statement.successors]
    if own in proof.signers:
        place = proof.signers.index(own)
        successors = before[place].statement.successors
    elif places:
        place, successors = places[-1] + 1, ()
    else:
        raise ParallaxError("no coordinator of this cluster has accepted this machine as a standby", NEW_CLUSTER_HINT)
    if place >= MOST_STATEMENTS or proof.latest.term >= LARGEST:
        raise ParallaxError("the cluster has had as many coordinators as it can have", NEW_CLUSTER_HINT)
    cluster, root = proof.cluster
    stated = TermStatement(cluster, root, proof.latest.term + 1, 0, own, key, successors)
    return TermProof((*before[:place], _sign(signing, stated)))


def judge(known: TermProof, told: TermProof) -> Verdict:
    """Return what a proof is beside one that is known.

    It is unproved if it is of another cluster, or if one of its coordinators has stated something else since: that it
    accepts the next one no more, or a later term than that of the next one.
    """
    if known.cluster == told.cluster and told.rank < known.rank:
        return "older"
    if known.cluster != told.cluster or find_gap(merge(known, told).signed):
        return "unproved"
    return "newer" if told.rank > known.rank else "same"


def merge(known: TermProof, told: TermProof) -> TermProof:
    """Return the proof that is told with the latest statement of each coordinator, also if that is the known one."""
    before = {each.statement.signer: each for each in known.signed}
    pairs = ((each, before.get(each.statement.signer, each)) for each in told.signed)
    return TermProof(tuple(max(pair, key=lambda each: each.statement.age) for pair in pairs))


def find_gap(signed: Sequence[SignedStatement]) -> str:
    """Return why statements do not follow from each other; empty: they do."""
    for before, after in pairwise(each.statement for each in signed):
        if after.signer not in before.successors:
            return "a coordinator has not accepted the key of the next one"
        if after.term < before.term:
            return "the term of a coordinator is earlier than that of the one before"
    return ""


def write_proof(proof: TermProof) -> bytes:
    """Return a proof as bytes."""
    return msgspec.msgpack.encode(proof.signed)


def read_proof(data: bytes) -> TermProof:
    """Return the proof that ``data`` stands for, whose signatures are checked.

    Raises:
        ValueError: if it is damaged, a signature is wrong, or a key was not accepted.
    """
    if len(data) > MOST_PROOF:
        raise ValueError(f"a proof has at most {MOST_PROOF} bytes, not {len(data)}")
    proof = TermProof(msgspec.msgpack.decode(data, type=tuple[SignedStatement, ...]))
    if not 0 < len(proof.signed) <= MOST_STATEMENTS or len(set(proof.signers)) < len(proof.signed):
        raise ValueError("a proof has one statement of each coordinator")
    if any((each.statement.cluster, each.statement.root) != proof.cluster for each in proof.signed):
        raise ValueError("the statements are of different clusters")
    if proof.signers[0] != proof.latest.root:
        raise ValueError("the first statement is not that of the root")
    if gap := find_gap(proof.signed):
        raise ValueError(gap)
    for each in proof.signed:
        _verify(each)
    return proof


def _sign(signing: SigningKey, statement: TermStatement) -> SignedStatement:
    return SignedStatement(statement, signing.sign(_pack(statement)).signature)


def _verify(signed: SignedStatement) -> None:
    try:
        VerifyKey(signed.statement.signer).verify(_pack(signed.statement), signed.signature)
    except CryptoError as error:
        raise ValueError("a signature is wrong") from error


def _pack(statement: TermStatement) -> bytes:
    return PURPOSE + msgspec.msgpack.encode(statement)
