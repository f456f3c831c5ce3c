"""Announcements of nodes and heads to holders of the same join code, passed on by others.

An announcement is the public key of its signer, a signature, and a body. Whoever passes it on checks the signature, so
that only its signer can change or withdraw it. The tag in the body, a MAC under a key derived from the secret of the
code, proves that the signer has the code. The secret itself is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import SigningKey, VerifyKey

from parallax_cluster.wire.rendezvous import MOST_ANNOUNCEMENT_BYTES, TOPIC_BYTES, Topic
from parallax_core.api import Count

SIGNER_BYTES, SIGNATURE_BYTES, TAG_BYTES = 32, 64, 32
MOST_CONTENT_BYTES = 1536
LIFETIME_S = 15.0
"""Seconds for which an announcement of ours holds unless it is repeated."""
MOST_LIFETIME_S = 60.0
"""The most seconds from when an announcement is made until it expires."""
SKEW_S = 30.0
"""How far apart the clocks of two machines may be, in seconds."""
ENROL_BYTES = 16


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is signed."""

    topic: Topic
    """Whom it is for; see `ClusterSecret.derive_topic`."""
    number: Count
    """Distinguishes what one signer announces at the same time: the number of a process."""
    sequence: Count
    """Of two announcements with the same signer, topic and number, the one with the higher counts."""
    expires: Count
    """Seconds since 1970."""
    content: Annotated[bytes, msgspec.Meta(max_length=MOST_CONTENT_BYTES)]
    """Empty: an earlier announcement is withdrawn."""
    tag: Annotated[bytes, msgspec.Meta(min_length=TAG_BYTES, max_length=TAG_BYTES)] = bytes(TAG_BYTES)
    """The MAC of the signer and all other fields."""


Place = tuple[bytes, bytes, int]
"""Topic, signer and number: a later announcement replaces an earlier one at the same place."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement whose signature is valid."""

    data: bytes
    """The whole, as it is passed on."""
    signer: bytes
    """The public key of the signer (Ed25519)."""
    body: Body

    @property
    def place(self) -> Place:
        """What it replaces."""
        return self.body.topic, self.signer, self.body.number

    def is_current(self, now: float) -> bool:
        """Return whether it has not expired, and was not made for longer than it may last; ``now``: since 1970."""
        return now - SKEW_S < self.body.expires <= now + MOST_LIFETIME_S + SKEW_S

    def describe_skew(self, now: float) -> str:
        """Say how far the signer's clock is from another one, if it was made just now; ``now``: since 1970."""
        skew_s = self.body.expires - LIFETIME_S - now
        return f"about {round(abs(skew_s), -1):.0f} s {'behind' if skew_s < 0 else 'ahead of'}"


@dataclass(frozen=True, slots=True)
class ClusterSecret:
    """The secret of a join code, as those use it who announce themselves."""

    secret: bytes

    def __repr__(self) -> str:
        return "ClusterSecret()"

    @property
    def enrolment(self) -> bytes:
        """The secret by which a node that was called is admitted by a head; see `JoinMethod.enrol`."""
        return self._derive(b"plx enrolment")[:ENROL_BYTES]

    def derive_topic(self, *names: bytes) -> bytes:
        """Return the topic of these names, from which neither they nor the secret can be found."""
        return hmac.digest(self._derive(b"plx topic"), msgspec.msgpack.encode(names), "sha256")[:TOPIC_BYTES]

    def announce(self, key: SigningKey, body: Body) -> bytes:
        """Return an announcement, with the tag and the signature."""
        signer = bytes(key.verify_key)
        signed = key.sign(msgspec.msgpack.encode(msgspec.structs.replace(body, tag=self._make_tag(signer, body))))
        return signer + bytes(signed)

    def has_made(self, announcement: Announcement) -> bool:
        """Return whether the signer of an announcement knows the secret."""
        return hmac.compare_digest(announcement.body.tag, self._make_tag(announcement.signer, announcement.body))

    def _make_tag(self, signer: bytes, body: Body) -> bytes:
        fields = msgspec.msgpack.encode(msgspec.structs.replace(body, tag=bytes(TAG_BYTES)))
        return hmac.digest(self._derive(b"plx announcement"), signer + fields, "sha256")

    def _derive(self, purpose: bytes) -> bytes:
        return hashlib.blake2b(self.secret, digest_size=32, person=purpose.ljust(16, b"\0")).digest()


def read_announcement(data: bytes) -> Announcement:
    """Return an announcement, whoever has made it.

    Raises:
        ValueError: if it is damaged, too long, or its signature is wrong.
    """
    if len(data) > MOST_ANNOUNCEMENT_BYTES:
        raise ValueError(f"an announcement has at most {MOST_ANNOUNCEMENT_BYTES} bytes, not {len(data)}")
    signer, signed = data[:SIGNER_BYTES], data[SIGNER_BYTES:]
    try:
        written = VerifyKey(signer).verify(signed)
        body = msgspec.msgpack.decode(written, type=Body)
    except (CryptoError, ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"this is no announcement: {error}") from error
    if msgspec.msgpack.encode(body) != written:
        raise ValueError("an announcement is not written in the usual way")
    return Announcement(data, signer, body)
