from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pytest

from parallax_core.api import Frame
from parallax_core.contracts.service_message import RESERVED, TAGS_OF_ONE, ServiceMessage, service_tag
from parallax_core.wire.codec import CORE_TAGS, VERSION_BYTE, decode, encode, index_kinds
from parallax_core.wire.errors import BadFrame, UnknownMessage
from parallax_core.wire.versions import find_tag
from tests.unit.wire.damage import KINDS


class Note(ServiceMessage, frozen=True, tag=service_tag("notes", 3)):
    most_bytes: ClassVar[int] = 64

    text: Annotated[str, msgspec.Meta(max_length=100)]

    def check(self) -> None:
        if self.text == "?":
            raise ValueError("a note is no question")


class Other(ServiceMessage, frozen=True, tag=service_tag("notes", 3)):
    pass


class Untagged(ServiceMessage, frozen=True):
    pass


class Named(ServiceMessage, frozen=True, tag="named"):
    pass


class Stolen(ServiceMessage, frozen=True, tag=0):
    pass


NOTES = index_kinds([Note])


def test_message_of_a_service_comes_out_as_it_went_in() -> None:
    assert decode(encode(Note("soon")), kinds=NOTES) == Note("soon")


def test_message_of_an_unknown_kind_is_told_by_its_tag() -> None:
    with pytest.raises(UnknownMessage) as raised:
        decode(encode(Note("soon")), kinds=KINDS)
    assert raised.value.tag == service_tag("notes", 3)


def test_message_that_is_too_large_is_neither_written_nor_read() -> None:
    fits = Note("x" * (64 - len(encode(Note("")).header) - 1))
    assert len(encode(fits).header) == Note.most_bytes
    with pytest.raises(ValueError, match="a Note has 65 bytes; at most 64 are allowed"):
        encode(Note(fits.text + "x"))
    header = VERSION_BYTE + msgspec.msgpack.encode([service_tag("notes", 3), fits.text + "x", ["not read"]])
    with pytest.raises(BadFrame, match="at most 64 are allowed"):
        decode(Frame(header), kinds=NOTES)


@pytest.mark.parametrize("body", [[1], ["?"], ["a", "b"], [None]])
def test_message_of_a_service_with_wrong_fields_is_refused(body: list[object]) -> None:
    with pytest.raises(BadFrame):
        decode(Frame(VERSION_BYTE + msgspec.msgpack.encode([service_tag("notes", 3), *body])), kinds=NOTES)


def test_message_of_a_service_has_no_buffers() -> None:
    with pytest.raises(BadFrame, match="0 tensors do not use each of its 1 buffers"):
        decode(Frame(encode(Note("soon")).header, (b"a",)), kinds=NOTES)


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        ((Note, Other), "the messages Note and Other have the same tag"),
        ((Untagged,), "the tag of the message Untagged is None"),
        ((Named,), "the tag of the message Named is 'named'"),
        ((Stolen,), "the message Stolen has the tag 0, which is one of core's"),
    ],
)
def test_tag_that_is_not_free_is_refused(kinds: tuple[type[ServiceMessage], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        index_kinds(kinds)


def test_tags_of_a_distribution_follow_from_its_name_as_installers_write_it() -> None:
    tags = [service_tag("My.Notes", number) for number in (0, TAGS_OF_ONE - 1)]
    assert tags == [service_tag("my-notes", number) for number in (0, TAGS_OF_ONE - 1)]
    assert tags[0] % TAGS_OF_ONE == RESERVED % TAGS_OF_ONE
    assert RESERVED <= tags[0] < tags[1] < 2**32
    assert service_tag("notes", 0) != service_tag("note", 0)


@pytest.mark.parametrize("number", [-1, TAGS_OF_ONE])
def test_distribution_has_so_many_tags(number: int) -> None:
    with pytest.raises(ValueError, match=f"the number of a message is {number}, not 0 to 255"):
        service_tag("notes", number)


def test_our_own_services_have_the_tags_that_they_always_had() -> None:
    assert {*CORE_TAGS, *KINDS} == {*range(15), *range(21, 56)}  # 15 to 20 were those of engines
    assert {kind.__name__: tag for tag, kind in KINDS.items() if tag in {22, 32, 40, 45}} == {
        "NodeReport": 22,
        "Relays": 32,
        "Follow": 40,
        "LinkTried": 45,
    }


@pytest.mark.parametrize("tag", [0, 127, 128, 255, 256, 2**16, 2**32 - 1])
@pytest.mark.parametrize("rest", [0, 14, 15, 2**16])
def test_tag_is_found_in_any_array(tag: int, rest: int) -> None:
    header = VERSION_BYTE + msgspec.msgpack.encode([tag, *[0] * rest])
    assert find_tag(header) == tag


@pytest.mark.parametrize("header", [b"", b"\x0d", b"\x0d\x90", b"\x0d\x91", b"\x0d\x91\xcd\x01", b"\x0d\x81\x01\x01"])
def test_header_without_a_tag_has_none(header: bytes) -> None:
    assert find_tag(header) is None
