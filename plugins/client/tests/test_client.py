"""The client of commands against small servers that misbehave; the real server is asked in tests/e2e."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from parallax_client.client import Client, HttpReply
from parallax_core.base.errors import ParallaxError
from tests.support.peer import Peer


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


OWN: list[tuple[Callable[[Client], Any], str, str]] = [
    (Client.cluster, "/v1/cluster", "cluster"),
    (lambda client: client.history(2.5), "/v1/cluster/history?since=2.5", "list"),
    (Client.known_models, "/v1/cluster/models", "cluster.models"),
]
"""What only our own servers answer: a call, its path and the kind of its answer."""


@pytest.mark.parametrize(("call", "path", "kind"), OWN)
def test_own_route_is_asked_with_the_key_and_its_answer_is_returned(
    peer: Peer, call: Callable[[Client], Any], path: str, kind: str
) -> None:
    peer.body = json.dumps({"object": kind, "data": [{"id": "event"}]}).encode()
    found = call(Client(peer.url + "/", key="secret"))
    assert found == ([{"id": "event"}] if kind == "list" else {"object": kind, "data": [{"id": "event"}]})
    assert peer.requests == [("GET", path, "Bearer secret")]


@pytest.mark.parametrize(("call", "path", "kind"), OWN)
@pytest.mark.parametrize("answer", [(404, b"{}"), (200, b"[]"), (200, b'{"object": "x"}'), (200, b"oops")])
def test_server_of_others_is_told_apart(
    peer: Peer, call: Callable[[Client], Any], path: str, kind: str, answer: tuple[int, bytes]
) -> None:
    peer.status, peer.body = answer
    with pytest.raises(ParallaxError, match=f"the server at {peer.url} is not a Parallax server"):
        call(peer.client)


@pytest.mark.parametrize(("call", "path", "kind"), OWN)
def test_own_route_that_needs_a_key_says_which_role(
    peer: Peer, call: Callable[[Client], Any], path: str, kind: str
) -> None:
    peer.status = 403
    peer.body = b'{"error": {"message": "not for users", "code": "insufficient_permissions"}}'
    with pytest.raises(ParallaxError, match="not for users") as caught:
        call(peer.client)
    assert caught.value.hint == "set PARALLAX_API_KEY to a key that has the role 'admin' on that server"


def test_key_is_that_of_the_caller_and_else_of_the_environment(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.body = b'{"data": [{"id": "toy"}, {"id": "other"}]}'
    monkeypatch.delenv("PARALLAX_API_KEY", raising=False)
    assert Client(peer.url).model() == "toy"
    monkeypatch.setenv("PARALLAX_API_KEY", "mine")
    assert Client(peer.url).model() == "toy"
    assert Client(peer.url, key="given").model() == "toy"
    assert [key for _, _, key in peer.requests] == [None, "Bearer mine", "Bearer given"]
    assert {path for _, path, _ in peer.requests} == {"/v1/models"}


def test_hint_is_said_once_beside_its_message(peer: Peer) -> None:
    peer.status = 409
    peer.body = b'{"error": {"message": "it is loading; wait for it", "hint": "wait for it"}}'
    with pytest.raises(ParallaxError) as caught:
        peer.client.change_cluster("/cluster/rebalance")
    assert (caught.value.message, caught.value.hint) == ("it is loading", "wait for it")


def test_changes_are_posted_and_named_by_their_id(peer: Peer) -> None:
    peer.body = b'{"id": "change-1"}'
    assert peer.client.change_models({"load": "org/model"}) == "change-1"
    assert json.loads(peer.asked) == {"load": "org/model"}
    peer.client.change_cluster("/cluster/rebalance")
    assert json.loads(peer.asked) == {}
    assert [request[:2] for request in peer.requests] == [
        ("POST", "/v1/cluster/models"),
        ("POST", "/v1/cluster/rebalance"),
    ]


@pytest.mark.parametrize("body", [b"oops", b"[]", b"{}"])
def test_change_without_an_id_is_of_no_server_of_ours(peer: Peer, body: bytes) -> None:
    peer.body = body
    with pytest.raises(ParallaxError, match="is not a Parallax server"):
        peer.client.change_models({})


def test_stream_ends_where_it_says_so(peer: Peer) -> None:
    peer.body = (
        b': ping\n\ndata: {"choices": [{"n": 1}, {"n": 2}]}\n\ndata: [DONE]\n\ndata: {"choices": [{"n": 3}]}\n\n'
    )
    assert list(peer.client.stream("/completions", {"prompt": "a"})) == [{"n": 1}, {"n": 2}]
    assert json.loads(peer.asked) == {"prompt": "a", "stream": True}


@pytest.mark.parametrize(
    ("status", "headers", "body", "reply"),
    [
        (200, {}, b'{"a": 1}', HttpReply(200, None, {"a": 1}, 1.0)),
        (200, {"X-Request-Id": "r", "Retry-After": "2.5"}, b"text", HttpReply(200, "r", "text", 2.5)),
        (429, {"Retry-After": "Fri, 01 Jan 2027"}, b'{"error": {}}', HttpReply(429, None, {"error": {}}, 1.0)),
        (503, {"X-Request-Id": "r"}, b"\xff", HttpReply(503, "r", "\ufffd", 1.0)),
    ],
)
def test_reply_is_whole_whatever_its_status(
    peer: Peer, status: int, headers: dict[str, str], body: bytes, reply: HttpReply
) -> None:
    peer.status, peer.headers, peer.body = status, headers, body
    assert peer.client.send("/completions", {"prompt": "a"}) == reply
    assert json.loads(peer.asked) == {"prompt": "a"}


CALLS: list[Callable[[Client], Any]] = [
    Client.model,
    Client.cluster,
    lambda client: client.change_models({}),
    lambda client: client.change_cluster("/cluster/rebalance"),
    lambda client: list(client.stream("/completions", {})),
    lambda client: client.send("/completions", {}),
]


@pytest.mark.parametrize("call", CALLS)
def test_address_without_a_server_is_named(call: Callable[[Client], Any]) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # bound, so that nothing else listens there, and not listening
        client = Client(f"http://127.0.0.1:{sock.getsockname()[1]}/v1")
        with pytest.raises(ParallaxError, match=r"no server answers at http://127.0.0.1:\d+/v1: ") as caught:
            call(client)
    assert caught.value.hint == "start one with `parallax serve`, or give its address with --url"


@pytest.mark.parametrize("call", [*CALLS[:2], CALLS[4], CALLS[5]])
def test_server_that_says_nothing_is_given_up(call: Callable[[Client], Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", timeout_s=0.05)
        with pytest.raises(ParallaxError, match="timed out"):
            call(client)


def test_example_of_an_address_is_the_one_that_was_probably_meant(peer: Peer) -> None:
    peer.body = b"{}"
    for url, example in ((peer.url, "http://127.0.0.1:8000/v1"), (peer.url.removesuffix("/v1"), peer.url)):
        with pytest.raises(ParallaxError) as caught:
            Client(url).model()
        assert caught.value.hint == f"give its address with --url, such as {example}"


@pytest.mark.parametrize("call", CALLS[:2])
def test_answer_that_is_cut_off_is_told(peer: Peer, call: Callable[[Client], Any]) -> None:
    peer.headers, peer.body = {"Connection": "close"}, b'{"data": ['
    peer.missing_bytes = 10
    with pytest.raises(ParallaxError, match="no server answers at"):
        call(peer.client)
