from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from parallax_cluster.membership.announcement import Announcement, Body, ClusterSecret
from parallax_cluster.membership.calls import HeadCall, LayerOffer, find_calls, find_offers, read_call, read_offer

SECRET = ClusterSecret(b"s" * 16)


def contain(content: bytes) -> Announcement:
    return Announcement(b"", b"", Body(bytes(16), 0, 0, 0, content))


def test_offers_and_calls_are_read_as_they_were_made() -> None:
    offer, call = LayerOffer("hf:org/model", 3, 7), HeadCall(b"head")
    assert read_offer(contain(msgspec.msgpack.encode(offer))) == offer
    assert read_call(contain(msgspec.msgpack.encode(call))) == call
    assert read_offer(contain(msgspec.msgpack.encode(call))) is None
    assert read_call(contain(msgspec.msgpack.encode(offer))) is None


@given(st.binary(max_size=1500))
def test_garbage_is_neither(content: bytes) -> None:
    for found, kind in ((read_offer(contain(content)), LayerOffer), (read_call(contain(content)), HeadCall)):
        assert found is None or msgspec.msgpack.decode(content, type=kind) == found


def test_calls_are_for_one_node_of_one_cluster() -> None:
    one, other = (bytes(SigningKey(letter * 32).verify_key) for letter in (b"1", b"2"))
    topics = [find_calls(SECRET, one, 1), find_calls(SECRET, one, 2), find_calls(SECRET, other, 1), find_offers(SECRET)]
    topics.append(find_calls(ClusterSecret(b"t" * 16), one, 1))
    assert len(set(topics)) == 5
