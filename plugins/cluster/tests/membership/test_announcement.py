from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from parallax_cluster.membership.announcement import (
    MOST_CONTENT_BYTES,
    MOST_LIFETIME_S,
    SKEW_S,
    Announcement,
    Body,
    ClusterSecret,
    read_announcement,
)
from parallax_cluster.wire.rendezvous import MOST_ANNOUNCEMENT_BYTES

KEY, OTHER_KEY = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
SECRET, OTHER_SECRET = ClusterSecret(b"s" * 16), ClusterSecret(b"t" * 16)
TOPIC = SECRET.derive_topic(b"offers")
BODY = Body(TOPIC, 7, 3, 1000, b"content")
DATA = SECRET.announce(KEY, BODY)


def test_announcement_is_read_as_it_was_made_and_fits_its_bound() -> None:
    longest = SECRET.announce(KEY, Body(TOPIC, 2**53 - 1, 2**53 - 1, 2**53 - 1, bytes(MOST_CONTENT_BYTES)))
    assert len(longest) <= MOST_ANNOUNCEMENT_BYTES
    found = read_announcement(DATA)
    assert (found.data, found.signer) == (DATA, bytes(KEY.verify_key))
    assert msgspec.structs.replace(found.body, tag=BODY.tag) == BODY
    assert found.place == (TOPIC, bytes(KEY.verify_key), 7)


def test_only_who_knows_the_secret_makes_a_tag_that_is_believed() -> None:
    assert SECRET.has_made(read_announcement(DATA))
    assert not OTHER_SECRET.has_made(read_announcement(DATA))
    assert not SECRET.has_made(read_announcement(OTHER_SECRET.announce(KEY, BODY)))


def test_tag_of_another_is_of_no_use() -> None:
    """Who sees an announcement cannot sign its content himself: the tag covers the signer."""
    body = read_announcement(DATA).body
    signer = bytes(OTHER_KEY.verify_key)
    forged = read_announcement(signer + bytes(OTHER_KEY.sign(msgspec.msgpack.encode(body))))
    assert forged.body == body
    assert not SECRET.has_made(forged)


def test_announcement_shows_neither_the_secret_nor_what_topics_are_made_of() -> None:
    assert SECRET.secret not in DATA
    assert b"offers" not in DATA
    assert SECRET.derive_topic(b"offers") != OTHER_SECRET.derive_topic(b"offers")
    assert SECRET.derive_topic(b"ab", b"c") != SECRET.derive_topic(b"a", b"bc")
    assert SECRET.enrolment not in {SECRET.secret, OTHER_SECRET.enrolment}
    assert "s" * 16 not in repr(SECRET)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_change_of_any_byte_is_noticed(index: int, flip: int) -> None:
    damaged = bytearray(DATA)
    damaged[index] ^= flip
    with pytest.raises(ValueError, match="announcement"):
        read_announcement(bytes(damaged))


@given(st.binary(max_size=MOST_ANNOUNCEMENT_BYTES + 10))
@example(b"")
@example(DATA[:40])
@example(DATA[:96])
@example(DATA + b"x")
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="announcement"):
        read_announcement(data)


@given(st.binary(max_size=300))
@example(msgspec.msgpack.encode(BODY) + b"x")
@example(msgspec.msgpack.encode([TOPIC, 7, 3, 1000, b"content", b"short"]))
@example(msgspec.msgpack.encode([TOPIC, -1, 3, 1000, b"content", bytes(32)]))
@example(msgspec.msgpack.encode([TOPIC, 7, 3, 1000, b"content"]))
def test_signed_garbage_is_refused(written: bytes) -> None:
    with pytest.raises(ValueError, match="announcement"):
        read_announcement(bytes(KEY.verify_key) + bytes(KEY.sign(written)))


@given(st.floats(0, 4000))
def test_announcement_counts_until_it_expires_and_cannot_be_made_for_long(now: float) -> None:
    found = Announcement(DATA, b"", BODY)
    assert found.is_current(now) == (now - SKEW_S < 1000 <= now + MOST_LIFETIME_S + SKEW_S)


def test_announcements_are_those_of_other_versions() -> None:
    assert hashlib.sha256(DATA).hexdigest().startswith("a0bc4b0eb5b7e2a1d06c78a7f861b1dc")
    assert TOPIC.hex() == "0b6cb0972432ef33324b1619641009ad"
    assert SECRET.enrolment.hex() == "74d44a3adfc859c88e546bd79826dab9"


def test_content_has_so_many_bytes_at_most() -> None:
    assert read_announcement(SECRET.announce(KEY, Body(TOPIC, 7, 3, 1000, bytes(1536)))).body.content == bytes(1536)
    with pytest.raises(ValueError, match="this is no announcement"):
        read_announcement(SECRET.announce(KEY, Body(TOPIC, 7, 3, 1000, bytes(1537))))
