from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Epoch, Frame, TransportPlan
from parallax_core.base.printable import make_printable
from parallax_core.builtin.inprocess import InProcessTransport
from parallax_core.node.channel import Channel
from parallax_core.node.printable import tidy
from parallax_core.wire.codec import VERSION_BYTE, decode, encode
from parallax_core.wire.membership import Loading, Refusal, Release
from parallax_core.wire.messages import Failure, Message
from tests.unit.node.cluster import soon

EPOCH = Epoch(1)
UGLY = "line one\n\tline two \x1b[2J\x07 \u202e" + "x" * 10_000
SAYINGS: list[Message] = [
    Failure(EPOCH, 1, 0, UGLY),
    Refusal(EPOCH, 0, UGLY, UGLY),
    Loading(EPOCH, 0, UGLY, 1, 2),
]


@given(st.text(max_size=60), st.integers(0, 20))
def test_text_becomes_one_printable_line(text: str, most: int) -> None:
    line = make_printable(text, most)
    assert line.isprintable()
    assert len(line) <= most


def test_text_that_is_printable_stays_as_it_is() -> None:
    text = "out of memory: größer als 8 GB"
    assert make_printable(text, 100) == text


@pytest.mark.parametrize("message", SAYINGS, ids=lambda each: type(each).__name__)
def test_words_fit_a_frame_and_harm_no_terminal(message: Message) -> None:
    said = tidy(message)
    assert decode(encode(said)) == said
    texts = [text for name in ("message", "hint", "task") if (text := getattr(said, name, None)) is not None]
    assert texts
    assert all(text.startswith("line one line two ?[2J? ?xxx") and text.isprintable() for text in texts)


def test_message_without_words_is_left_alone() -> None:
    release = Release(EPOCH)
    assert tidy(release) is release


async def test_words_are_made_harmless_by_who_hears_them_too() -> None:
    far = InProcessTransport(TransportPlan(node="far", listen="inprocess://"))
    await far.start()
    near = await InProcessTransport(TransportPlan(node="near")).connect(far.address, "far")
    there = Channel(await far.accept())
    ugly = encode(Failure(EPOCH, 1, 0, "red \x1b[31m"))
    await near.send(Frame(ugly.header))
    heard = await soon(there.receive())
    assert isinstance(heard, Failure)
    assert heard.message == "red ?[31m"
    assert ugly.header.startswith(VERSION_BYTE)
    await far.stop()
