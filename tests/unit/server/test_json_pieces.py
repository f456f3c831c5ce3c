from __future__ import annotations

import json

import pytest

from parallax_core.server.json_pieces import (
    HOLE,
    MESSAGE_BYTES,
    MESSAGE_PIECES,
    as_json,
    cut,
    join_pieces,
    take_message,
    to_json,
    write_list,
    write_lists,
    write_object,
)


def test_object_is_written_with_its_last_field_in_pieces() -> None:
    pieces = list(write_object({"a": 1, "b": HOLE}, [b"[1,", b"2]"]))
    assert pieces == [b'{"a":1,"b":', b"[1,", b"2]", b"}"]
    assert json.loads(to_json({"a": as_json(b'{"b": [1]}')})) == {"a": {"b": [1]}}


@pytest.mark.parametrize("items", [[], [b"1"], [b"1", b'"x"', b"{}"]])
def test_list_is_written_item_by_item(items: list[bytes]) -> None:
    assert json.loads(b"".join(write_list(items))) == [json.loads(each) for each in items]
    assert b"".join(write_lists([each[:1], each[1:]] for each in items)) == b"".join(write_list(items))


@pytest.mark.parametrize("size", [0, 1, MESSAGE_BYTES, MESSAGE_BYTES + 1, 3 * MESSAGE_BYTES])
def test_text_is_cut_into_pieces_of_the_size_of_a_message(size: int) -> None:
    pieces = list(cut(b"x" * size))
    assert b"".join(pieces) == b"x" * size
    assert [len(each) for each in pieces[:-1]] == [MESSAGE_BYTES] * (len(pieces) - 1)
    assert len(pieces) == -(-size // MESSAGE_BYTES)


def test_message_has_as_many_bytes_and_pieces_as_it_may() -> None:
    half = b"x" * (MESSAGE_BYTES // 2)
    assert take_message(iter([half, half, b"y"])) == (half + half, False)
    assert take_message(iter([half, half[1:]])) == (half + half[1:], True)
    assert take_message(iter([half, half[1:], half, b"y"])) == (half + half[1:] + half, False)
    pieces = iter([b"z"] * (MESSAGE_PIECES + 3))
    assert take_message(pieces) == (b"z" * MESSAGE_PIECES, False)
    assert take_message(pieces) == (b"zzz", True)
    assert take_message(pieces) == (b"", True)


def test_pieces_are_joined_to_at_least_one_message() -> None:
    assert list(join_pieces([])) == [b""]
    assert list(join_pieces([b"a", b"b"])) == [b"ab"]
    large = b"x" * MESSAGE_BYTES
    assert list(join_pieces([b"a", large, b"b"])) == [b"a" + large, b"b"]
    assert list(join_pieces([large])) == [large, b""]
