"""Machines that sign terms, each with a key made from its name."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import msgspec
from nacl.signing import SigningKey

from parallax_cluster.membership.term_proof import (
    PURPOSE,
    SignedStatement,
    TermProof,
    TermStatement,
    begin_proof,
    renew_proof,
    take_over,
)

CLUSTER = b"cluster"


@dataclass(frozen=True)
class Machine:
    """A machine that may be a coordinator."""

    name: str

    @property
    def signing(self) -> SigningKey:
        return SigningKey(sha256(self.name.encode()).digest())

    @property
    def signer(self) -> bytes:
        return bytes(self.signing.verify_key)

    @property
    def key(self) -> bytes:
        """The key that it proves on its links."""
        return f"key of {self.name}".encode()

    def begin(self, *successors: Machine, cluster: bytes = CLUSTER, term: int = 1) -> TermProof:
        """Return the proof of a cluster that this machine begins."""
        return self.renew(begin_proof(self.signing, cluster, term, self.key), *successors)

    def renew(self, proof: TermProof, *successors: Machine) -> TermProof:
        """Return the proof of this machine with other successors."""
        return renew_proof(proof, self.signing, self.key, [each.signer for each in successors])

    def take_over(self, proof: TermProof, *successors: Machine) -> TermProof:
        """Return the proof of the next term, of this machine."""
        return self.renew(take_over(proof, self.signing, self.key), *successors)

    def claim(self, proof: TermProof, term: int, cluster: bytes = CLUSTER) -> TermProof:
        """Return a proof of a later term of this machine, whether it may have it or not."""
        root = proof.latest.root
        stated = TermStatement(cluster, root, term, 0, self.signer, self.key)
        signature = self.signing.sign(PURPOSE + msgspec.msgpack.encode(stated)).signature
        return TermProof((*proof.signed, SignedStatement(stated, signature)))


def forge(proof: TermProof, place: int, **changes: object) -> TermProof:
    """Return a proof with a statement that was changed after it was signed."""
    each = proof.signed[place]
    changed = SignedStatement(msgspec.structs.replace(each.statement, **changes), each.signature)
    return TermProof((*proof.signed[:place], changed, *proof.signed[place + 1 :]))


OLD, ONE, TWO, STRANGER = Machine("old"), Machine("one"), Machine("two"), Machine("stranger")
