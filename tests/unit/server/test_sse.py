"""Streams that are silent for long: a comment says that somebody is there, and clients do not mind."""

from __future__ import annotations

import asyncio
import threading
import time

import openai
import pytest

from parallax_core.server.response import SseResponse
from parallax_core.server.sse import COMMENT, KeepAlive
from tests.unit.server.letters import answer
from tests.unit.server.listening import Listening, request
from tests.unit.server.thread import Threaded


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a twentieth of a second count as long."""
    monkeypatch.setattr(SseResponse, "silence_s", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_stream_that_waits_is_kept_alive_by_comments() -> None:
    release = threading.Event()

    def hold(batch: object) -> None:
        release.wait(20)

    async with Listening() as server:
        server.site.stage.before_step = hold
        client = await server.connect()
        client.send(request(max_tokens=3, stream=True))
        await client.reader.readuntil(b"\r\n\r\n")
        text = b""
        while text.count(COMMENT) < 2:
            text += await client.reader.read(2**16)
        assert b"data:" not in text
        release.set()
        while b"[DONE]" not in text:
            text += await client.reader.read(2**16)
        assert text.count(b"data: {") == 4


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("path", ["/v1/cluster/events", "/v1/requests/events"])
async def test_stream_of_changes_is_kept_alive_where_nothing_changes(path: str) -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        text = b""
        while text.count(COMMENT) < 2:
            text += await client.reader.read(2**16)
        assert text.count(b"event: ") == 1


@pytest.mark.usefixtures("impatient")
def test_official_client_skips_the_comments() -> None:
    with Threaded() as server:
        server.listening.site.stage.before_step = lambda batch: time.sleep(0.15)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="toy", messages=[{"role": "user", "content": "hello"}], stream=True, max_tokens=4
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer("hello", 4)


async def test_no_comment_comes_within_a_message_or_after_the_last() -> None:
    sent: list[bytes] = []

    async def send(message: object) -> None:
        assert isinstance(message, dict)
        sent.append(b"begin " + message["body"])
        await asyncio.sleep(0.02)
        sent.append(b"end " + message["body"])

    async with KeepAlive(send, 0.005) as alive:
        for body in (b"1", b"2"):
            await alive.send({"type": "http.response.body", "body": body})
    count = len(sent)
    await asyncio.sleep(0.05)
    assert len(sent) == count
    for begun, ended in zip(sent[::2], sent[1::2], strict=True):
        assert (begun.partition(b" ")[0], ended.partition(b" ")[0]) == (b"begin", b"end")
        assert begun.partition(b" ")[2] == ended.partition(b" ")[2]
    assert sent[-1] == b"end 2"
