from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_cluster.membership import join_code
from parallax_cluster.membership.join_code import (
    ALPHABET,
    JoinCode,
    is_code,
    new_secret,
    read_code,
    shorten_code,
    write_code,
)
from parallax_core.base.errors import UsageError
from parallax_core.contracts.joining import MOST_HEAD_BYTES

CODES = st.builds(
    lambda transport, secret, head: JoinCode(transport=transport, secret=secret, head=head),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=MOST_HEAD_BYTES),
)
CODE = write_code(JoinCode(transport="zmq", secret=bytes(range(16)), head=b"where"))


@given(CODES)
def test_code_is_one_word_and_is_read_as_it_was_written(code: JoinCode) -> None:
    word = write_code(code)
    assert re.fullmatch(r"plx1[0-9A-Za-z]+", word)
    assert read_code(f" {word}\n") == code


@given(st.integers(min_value=0), st.sampled_from(ALPHABET))
def test_code_with_a_changed_letter_is_damaged(place: int, letter: str) -> None:
    place = 4 + place % (len(CODE) - 4)
    changed = CODE[:place] + letter + CODE[place + 1 :]
    if changed != CODE:
        with pytest.raises(UsageError, match="damaged") as caught:
            read_code(changed)
        assert CODE[4:] not in str(caught.value)


@given(st.text(max_size=2000))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    for word in (text, f"plx1{text}"):
        with pytest.raises(UsageError):
            read_code(word)


@given(st.binary(max_size=700))
def test_no_bytes_make_the_reader_fail_otherwise(data: bytes) -> None:
    number, letters = int.from_bytes(data), ""
    while number:
        number, digit = divmod(number, 62)
        letters = ALPHABET[digit] + letters
    with pytest.raises(UsageError):
        read_code(f"plx1{letters}")


def test_address_is_no_code() -> None:
    assert is_code(CODE)
    assert not is_code("tcp://10.0.0.5:9000")
    assert not is_code("plx1://host:9000")


def test_secret_has_128_bits_and_is_not_shown() -> None:
    secret = new_secret()
    assert len(secret) == 16
    assert secret != new_secret()
    assert secret.hex() not in repr(JoinCode(transport="zmq", secret=secret, head=b""))


def test_part_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="wrong length"):
        write_code(JoinCode(transport="zmq", secret=b"short", head=b""))


def test_codes_that_were_given_out_stay_valid() -> None:
    word = "plx1SbUkcL3qN6dOdGzCZiKBEAIDoPf9bedwXejQmCX"
    assert read_code(word) == JoinCode(transport="zmq", secret=bytes(range(16)), head=b"where")
    assert word == CODE
    assert shorten_code(word) == "plx12NzpPLTJGoYdWulv9nRHBIqzhJxX21BHU"
    assert len(new_secret()) == 16


@pytest.mark.parametrize(
    ("transport", "secret", "head", "is_written"),
    [
        ("t" * 64, 16, MOST_HEAD_BYTES, True),
        ("t" * 65, 16, 0, False),
        ("t", 15, 0, False),
        ("t", 17, 0, False),
        ("t", 16, MOST_HEAD_BYTES + 1, False),
    ],
)
def test_parts_of_a_code_have_limits(transport: str, secret: int, head: int, is_written: bool) -> None:
    code = JoinCode(transport=transport, secret=bytes(secret), head=bytes(head))
    if is_written:
        assert read_code(write_code(code)) == code
        return
    with pytest.raises(ValueError, match="a part of the code has the wrong length"):
        write_code(code)


def test_code_of_a_later_version_is_told_apart_from_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        later.setattr(join_code, "VERSION", 2)
        word = write_code(JoinCode(transport="zmq", secret=bytes(16), head=b""))
    with pytest.raises(UsageError, match="is of version 2, and this Parallax reads version 1"):
        read_code(word)
