from __future__ import annotations

import pytest

from parallax_tokenizers.protobuf import read_fields


def test_fields_of_each_kind_are_read() -> None:
    data = b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + bytes(8)
    assert list(read_fields(data)) == [(1, 150), (2, b"hi"), (3, b"\x00\x00\x80\x3f"), (4, bytes(8))]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x12\x05hi", "ends within a field"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\x7fhi", "ends within a field"),
        (b"\x08" + b"\xff" * 11, "an integer without an end"),
        (b"\x08", "an integer without an end"),
        (b"\x0b", "unknown kind 3"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(read_fields(data))
