"""Nothing that one client asks for holds the event loop for long, and its end waits for no thread or handshake."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from pathlib import Path

import pytest

from parallax_core.server.event_loop import run_loop
from parallax_core.server.json_pieces import MESSAGE_BYTES, MESSAGE_PIECES, write_list
from parallax_core.server.json_response import respond
from parallax_core.server.tokenizer_pool import TokenizerPool
from tests.unit.callbacks import watched
from tests.unit.server.dialects import make_setup
from tests.unit.server.letters import send_whole
from tests.unit.server.listening import Listening, head, until
from tests.unit.tinymodel import write_model


@pytest.mark.parametrize(
    "size", [0, 1, 11 * MESSAGE_PIECES, 11 * MESSAGE_PIECES - 12, MESSAGE_BYTES, 3 * MESSAGE_BYTES]
)
async def test_response_of_any_size_is_whole(size: int) -> None:
    pieces = list(write_list([b"1" * 10] * (size // 11)))
    assert b"".join(await send_whole(respond(pieces))) == b"".join(pieces)


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
