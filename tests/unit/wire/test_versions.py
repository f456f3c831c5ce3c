from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.wire.codec import encode
from parallax_core.wire.messages import Hello, Welcome
from parallax_core.wire.versions import (
    GREETING_TAGS,
    NodeVersions,
    find_conflict,
    find_versions,
    read_versions,
    write_versions,
)
from tests.unit.wire.make_golden_frames import read_golden

VERSIONS = NodeVersions(13, "0.1.0", 1)


def test_versions_survive_being_written_and_later_fields_are_skipped() -> None:
    assert read_versions(write_versions(VERSIONS)) == VERSIONS
    assert read_versions(msgspec.msgpack.encode([13, "0.1.0", 1, "more", {}])) == VERSIONS


def test_greetings_of_every_version_so_far_say_who_sent_them() -> None:
    for number, frames in read_golden().items():
        for name in ("hello", "welcome"):
            found = find_versions(frames[name].header)
            assert found is not None
            assert (found.wire, found.software) == (int(number), "0.1.0")


def test_other_messages_say_nothing() -> None:
    golden = read_golden()["13"]
    found = {name.split()[0] for name in golden if find_versions(golden[name].header) is not None}
    assert found == {"hello", "welcome"}
    assert (Hello.__struct_config__.tag, Welcome.__struct_config__.tag) == GREETING_TAGS


@given(st.binary(min_size=1, max_size=200))
def test_bytes_of_no_meaning_are_no_error(data: bytes) -> None:
    find_versions(data)
    with suppress(ValueError):
        assert read_versions(data).software.isprintable()


def test_software_that_cannot_be_shown_is_refused() -> None:
    with pytest.raises(ValueError, match="unprintable"):
        read_versions(msgspec.msgpack.encode([13, "a\nb", 1]))
    assert find_versions(encode(Hello(13, "near", "a\nb")).header) is None


def test_conflict_names_what_differs() -> None:
    other = NodeVersions(14, "0.2.0", 2)
    assert find_conflict(VERSIONS, VERSIONS, "it") == ""
    they, we = "node 'a', with Parallax 0.2.0,", "and this node, with Parallax 0.1.0,"
    wire = f"{they} uses version 14 of the wire format, {we} version 13"
    assert find_conflict(VERSIONS, other, "node 'a'") == wire
    pages = f"{they} counts pages by version 2 of the rules, {we} by version 1"
    assert find_conflict(VERSIONS, NodeVersions(13, "0.2.0", 2), "node 'a'") == pages
