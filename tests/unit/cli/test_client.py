"""The client of commands against small servers that misbehave; the real server is asked in tests/e2e."""

from __future__ import annotations

import pytest

from parallax_core.base.errors import ParallaxError
from tests.unit.cli.peer import Peer


@pytest.mark.parametrize("body", [b"hello", b"{}", b'{"data": []}', b"[]", b"\xff"])
def test_what_is_no_such_server_is_told(peer: Peer, body: bytes) -> None:
    peer.body = body
    with pytest.raises(ParallaxError, match="not an OpenAI-compatible server"):
        peer.client.model()


def test_refusal_is_told_in_the_servers_words(peer: Peer) -> None:
    peer.status, peer.body = 401, b'{"error": {"message": "no valid API key"}}'
    with pytest.raises(ParallaxError, match="no valid API key") as caught:
        peer.client.model()
    assert caught.value.hint == "set PARALLAX_API_KEY to a key that has the role 'user' on that server"


@pytest.mark.parametrize("body", [b"oops", b"{}", b"[]"])
def test_refusal_without_words_is_told_by_its_number(peer: Peer, body: bytes) -> None:
    peer.status, peer.body = 502, body
    with pytest.raises(ParallaxError, match="502 Bad Gateway"):
        peer.client.model()


@pytest.mark.parametrize("cut", [1, 8, 30])
def test_server_that_is_killed_in_mid_answer_is_told(peer: Peer, cut: int) -> None:
    events = (
        b'data: {"choices": [{"delta": {"content": "He"}}]}\n\ndata: {"choices": [{"delta": {"content": "y"}}]}\n\n'
    )
    peer.stream, peer.is_chunked = b"%x\r\n%b\r\n" % (len(events), events), True
    peer.stream = peer.stream[:-cut]
    peer.may_end.set()
    answer = peer.client.stream("/chat/completions", {"model": "m", "messages": []})
    assert next(answer)["delta"] == {"content": "He"}
    with pytest.raises(ParallaxError, match="in the middle of its answer"):
        list(answer)


def test_error_in_the_stream_is_told(peer: Peer) -> None:
    peer.body = b'data: {"error": {"message": "out of memory"}}\n\n'
    with pytest.raises(ParallaxError, match="out of memory"):
        list(peer.client.stream("/chat/completions", {}))
