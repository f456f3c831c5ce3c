"""Nothing that one client asks for holds the event loop for long, and its end waits for no thread or handshake."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from parallax_core.contracts.engine import Delta, TokenLogprob
from parallax_core.server.body_messages import ResponseForm
from parallax_core.server.chat import ChatResponse
from parallax_core.server.event_loop import run_loop
from parallax_core.server.json_pieces import HOLE, MESSAGE_BYTES, MESSAGE_PIECES, write_list, write_object
from parallax_core.server.json_response import gather, respond
from parallax_core.server.logprobs import CompletionLogprobs, TokenWriter
from parallax_core.server.response import SseResponse
from parallax_core.server.response_models import CachedTokens, OutputDetails, Usage
from parallax_core.server.tokenizer_pool import TokenizerPool
from tests.unit.callbacks import watched
from tests.unit.server.dialects import make_setup
from tests.unit.server.letters import ALPHABET, Letters
from tests.unit.server.listening import Listening, head, until
from tests.unit.tinymodel import write_model

ANSWERS, TOKENS, TOP = 16, 1024, 20
ENTRY = TokenLogprob(3, -0.25, tuple((token, -token / 7) for token in range(TOP)))


class LongFlow:
    """Yields many tokens for many answers, as steps bring them."""

    async def read(self) -> AsyncIterator[tuple[int, Delta]]:
        for step in range(TOKENS):
            await asyncio.sleep(0)
            for index in range(ANSWERS):
                ended = "length" if step == TOKENS - 1 else None
                yield 0, Delta(text="d", tokens=(3,), index=index, logprobs=(ENTRY,), ended=ended)  # type: ignore[arg-type]

    collect = read

    def usage(self, num_reasoning: int) -> Usage:
        return Usage(0, 0, 0, CachedTokens(cached_tokens=0), OutputDetails(reasoning_tokens=num_reasoning))


def make_chat() -> ChatResponse:
    form = ResponseForm(model="toy", num_answers=ANSWERS, logprobs=TOP)
    service = SimpleNamespace(parser=None, fingerprint="fp_1")
    return ChatResponse(service, TokenWriter(Letters()), form, LongFlow(), "chatcmpl-1", 5)  # type: ignore[arg-type]


async def send_whole(response: Any) -> list[bytes]:
    """Return the body that a response sends, in pieces."""
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await response({"type": "http", "asgi": {}}, receive, send)
    return sent


async def test_long_answer_with_logprobs_is_written_bit_by_bit() -> None:
    await send_whole(respond([b" " * MESSAGE_BYTES]))  # imports what the first response needs
    with watched() as callbacks:
        sent = await asyncio.create_task(send_whole(await asyncio.create_task(make_chat().collect())))
    callbacks.check()
    body = b"".join(sent)
    assert len(body) > 50 * MESSAGE_BYTES / 2
    reply = json.loads(body)
    assert [choice["index"] for choice in reply["choices"]] == list(range(ANSWERS))
    for choice in reply["choices"]:
        assert choice["message"]["content"] == "d" * TOKENS
        assert len(choice["logprobs"]["content"]) == TOKENS
    entry = reply["choices"][-1]["logprobs"]["content"][-1]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("d", -0.25, [100])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [
        (ALPHABET[token], logprob) for token, logprob in ENTRY.top
    ]


async def test_logprobs_of_a_long_prompt_are_written_bit_by_bit() -> None:
    describe = CompletionLogprobs(Letters(), TokenWriter(Letters()), TOP)  # type: ignore[arg-type]
    with watched() as callbacks:
        columns = await asyncio.create_task(describe.describe([ENTRY] * 20_000, first=0))
        event = write_object({"index": 0, "logprobs": HOLE}, columns.write())
        pieces = [piece async for piece in gather(event)]
    callbacks.check()
    found = json.loads(b"".join(pieces))["logprobs"]
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(found, 20_001)
    assert found["text_offset"] == list(range(20_001))


@pytest.mark.parametrize(
    "size", [0, 1, 11 * MESSAGE_PIECES, 11 * MESSAGE_PIECES - 12, MESSAGE_BYTES, 3 * MESSAGE_BYTES]
)
async def test_response_of_any_size_is_whole(size: int) -> None:
    pieces = list(write_list([b"1" * 10] * (size // 11)))
    assert b"".join(await send_whole(respond(pieces))) == b"".join(pieces)


async def test_event_of_any_size_is_whole() -> None:
    class Quiet:
        def close(self) -> None:
            pass

    async def events() -> AsyncIterator[list[bytes]]:
        yield [b"1" * 100] * 10_000
        yield [b"2"]

    sent = await send_whole(SseResponse.of_chunks(events(), Quiet()))  # type: ignore[arg-type]
    assert b"".join(sent) == b"data: " + b"1" * 1_000_000 + b"\n\ndata: 2\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "tiny", "prompt": [' + b"{}," * 690_000 + b"{}]}",
        b'{"model": "tiny", "prompt": [' + b"[1]," * 520_000 + b"[1]]}",
        b'{"model": "tiny", "prompt": [' + b"1," * 1_040_000 + b"1]}",
        b'{"model": "tiny", ' + b",".join(b'"k%d":0' % number for number in range(170_000)) + b"}",
        json.dumps({"model": "tiny", "prompt": "word " * 400_000}).encode(),
    ],
    ids=["objects", "lists", "tokens", "names", "text"],
)
async def test_large_body_is_read_elsewhere(tmp_path: Path, body: bytes) -> None:
    pool = TokenizerPool(make_setup(write_model(tmp_path)))
    await pool.start()
    async with Listening(reader=pool) as server:
        client = await server.connect()
        client.send(b"GET /version HTTP/1.1\r\nHost: toy\r\n\r\n")
        await client.read()
        with watched() as callbacks:
            client.send(head(len(body)).replace(b"/v1/chat/completions", b"/v1/completions") + body)
            status, _, _ = await client.read()
        callbacks.check()
        assert status in {400, 404}
    await pool.stop()


def test_numbers_that_json_does_not_know_are_written_as_the_lowest() -> None:
    writer = TokenWriter(Letters())  # type: ignore[arg-type]
    strange = TokenLogprob(1, float("-inf"), ((2, float("nan")), (3, -1e-30)))
    found = msgspec.json.decode(writer.write_entry(strange))
    assert (found["logprob"], *(top["logprob"] for top in found["top_logprobs"])) == (-9999, -9999, -1e-30)
    assert msgspec.json.decode(writer.write_top(strange)) == {"b": -9999, "c": -9999, "d": -1e-30}


def test_end_of_the_loop_does_not_wait_for_threads() -> None:
    release, entered = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        release.wait(60)

    async def run() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)
        await until(entered.is_set)

    run_loop(run(), 30)
    assert not release.is_set()
    release.set()


def test_client_that_says_nothing_in_a_tls_handshake_is_cut_off() -> None:
    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        sock = socket.create_server(("127.0.0.1", 0))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server = await loop.create_server(asyncio.Protocol, sock=sock, ssl=context)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        try:
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()
            server.close()

    assert run_loop(run(), 0.2) == b""
