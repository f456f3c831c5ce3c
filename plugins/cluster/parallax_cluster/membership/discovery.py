"""Questions and answers by which a machine finds a head without its address.

Both know a secret: the proof of a join code, or the head's key if the machine has joined before. A question names it by
a fingerprint, from which it cannot be found; the answer is the description of the head, with a tag that only those can
make who know the secret and have seen the question. So a stranger who asks gets no answer, one who listens learns
neither code nor secret, and one who invents an answer is not believed. The head proves its key afterwards, as always.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parallax_core.api import MOST_HEAD_BYTES

VERSION = b"\x01"
FINGERPRINT_BYTES, NONCE_BYTES, TAG_BYTES = 16, 16, 32
QUESTION_BYTES = len(VERSION) + FINGERPRINT_BYTES + NONCE_BYTES


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the head that knows a secret."""

    secret: bytes
    nonce: bytes
    """`NONCE_BYTES` random bytes: answers to earlier questions do not match."""

    def __repr__(self) -> str:
        return "Question()"

    @property
    def data(self) -> bytes:
        """The question as it is sent."""
        return VERSION + derive_fingerprint(self.secret) + self.nonce

    def read(self, answer: bytes) -> bytes | None:
        """Return the description of the head in an answer; None: the answer is not from one who knows the secret."""
        tag, head = answer[:TAG_BYTES], answer[TAG_BYTES:]
        if not head or len(head) > MOST_HEAD_BYTES or not hmac.compare_digest(tag, _make_tag(self, head)):
            return None
        return head


def new_question(secret: bytes) -> Question:
    """Return a question that was not asked before."""
    return Question(secret, secrets.token_bytes(NONCE_BYTES))


def derive_fingerprint(secret: bytes) -> bytes:
    """Return the name of a secret in questions; it is not a part of it."""
    return hashlib.blake2b(secret, digest_size=FINGERPRINT_BYTES, person=b"parallax find").digest()


def index_secrets(secrets_: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the secrets of a head by their fingerprints."""
    return {derive_fingerprint(secret): secret for secret in secrets_}


def write_answer(data: bytes, known: Mapping[bytes, bytes], head: bytes) -> bytes | None:
    """Return the answer of a head to a question, which may be any bytes; None: it is not meant for this head.

    Args:
        data: the question.
        known: what `index_secrets` returns.
        head: the description of the head, at most `MOST_HEAD_BYTES`.
    """
    if len(data) != QUESTION_BYTES or data[: len(VERSION)] != VERSION:
        return None
    fingerprint, nonce = data[1 : 1 + FINGERPRINT_BYTES], data[1 + FINGERPRINT_BYTES :]
    secret = known.get(fingerprint)
    return None if secret is None else _make_tag(Question(secret, nonce), head) + head


def _make_tag(question: Question, head: bytes) -> bytes:
    key = hashlib.blake2b(question.secret, digest_size=TAG_BYTES, person=b"parallax answer").digest()
    return hmac.digest(key, question.nonce + head, "sha256")
