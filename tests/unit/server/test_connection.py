"""What clients do to a real socket; the server goes on after each."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.node.pipeline.unread import UnreadOutput
from parallax_core.server import connection, run
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.connection import make_protocol
from parallax_core.server.options import MAX_BODY_BYTES, ServerOptions
from tests.unit.server.letters import Site, answer
from tests.unit.server.listening import Client, Listening, head, request, until

QUICK = ServerOptions(request_s=0.4)


def content_of(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["message"]["content"])


def is_idle(server: Listening) -> bool:
    [stats] = server.site.engine.stats()
    return stats.running == stats.waiting == 0


@pytest.mark.parametrize("opening", [b"", b"POST /v1/chat", b"GET / HTTP/1.1\r\nHost: toy\r\nX: "])
async def test_client_that_never_sends_its_head_is_cut_off(opening: bytes) -> None:
    async with Listening(QUICK) as server:
        began = time.monotonic()
        client = await server.connect()
        client.send(opening)
        assert await client.is_cut()
        assert 0.35 < time.monotonic() - began < 5
        assert await server.answers()


async def test_of_too_many_silent_clients_the_oldest_are_cut_off_and_busy_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = run.make_config
    monkeypatch.setattr(run, "make_config", lambda site: make(site, 3))
    async with Listening() as server:
        busy = await server.connect()
        busy.send(request(max_tokens=1))
        assert (await busy.read())[0] == 200
        silent = []
        for number in range(5):
            silent.append(await server.connect())
            silent[-1].send(b"POST /v1/ch" if number % 2 else b"")
            await until(lambda number=number: server.num_connections == min(number + 2, 4))
        for client in silent[:2]:
            assert await client.is_cut()
        busy.send(request(max_tokens=1))
        assert (await busy.read())[0] == 200
        silent[4].send(request(max_tokens=1))
        assert (await silent[4].read())[0] == 200


async def test_client_that_stalls_in_its_second_head_is_cut_off_too() -> None:
    async with Listening(QUICK) as server:
        client = await server.connect()
        client.send(request(max_tokens=1))
        assert (await client.read())[0] == 200
        client.send(b"POST /v1/ch")
        assert await client.is_cut()


async def test_idle_connection_stays_open_for_the_time_of_its_option() -> None:
    async with Listening(ServerOptions(keep_alive_s=0.2)) as server:
        client = await server.connect()
        for _ in range(2):
            client.send(request(max_tokens=1))
            assert (await client.read())[0] == 200
        assert await client.is_cut()
    assert ServerOptions().keep_alive_s == 75


async def test_body_that_never_comes_is_a_408_and_its_rest_is_not_waited_for() -> None:
    async with Listening(QUICK) as server:
        client = await server.connect()
        client.send(head(100) + b"{")
        status, _, body = await client.read()
        assert (status, json.loads(body)["error"]["code"]) == (408, None)
        for _ in range(3):  # what trickles in does not count
            client.send(b" ")
            await asyncio.sleep(0.1)
        assert await client.is_cut(within_s=4)
        assert await server.answers()


async def test_client_that_does_not_take_its_stream_is_cut_off_and_its_generation_stops() -> None:
    async with Listening(QUICK) as server:
        server.site.stage.before_step = lambda batch: time.sleep(0.001)
        client = await server.connect(receive_buffer=2048)
        server_side = await shrink(server)
        client.send(request(max_tokens=390, n=24, stream=True, logprobs=True, top_logprobs=20, content="go"))
        await until(lambda: server_side.transport.get_write_buffer_size() > 0)
        await until(lambda: server.num_connections == 0)
        await until(lambda: is_idle(server))
        assert await server.answers()
        await client.close()


async def test_client_that_takes_its_stream_in_drops_is_cut_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LEAST_BYTES_S", 10**7)  # what is taken below is little beside that
    async with Listening(QUICK) as server:
        server.site.stage.before_step = lambda batch: time.sleep(0.001)
        client = await server.connect(receive_buffer=2048)
        server_side = await shrink(server)
        client.send(request(max_tokens=390, n=24, stream=True, logprobs=True, top_logprobs=20, content="go"))
        await until(lambda: server_side.transport.get_write_buffer_size() > 0)
        async with asyncio.timeout(10):
            while server.num_connections:
                await client.reader.read(2**12)
                await asyncio.sleep(0.01)
        await until(lambda: is_idle(server))
        assert await server.answers()


async def test_client_that_takes_its_stream_slowly_and_surely_gets_all_of_it() -> None:
    async with Listening(ServerOptions(request_s=1.5)) as server:
        client = await server.connect(receive_buffer=2048)
        await shrink(server)
        client.send(request(max_tokens=300, n=2, stream=True, logprobs=True, top_logprobs=20, content="go"))
        got = bytearray()
        while b"[DONE]" not in got[-100:]:
            got += await client.reader.read(2**14)
            await asyncio.sleep(0.01)
        assert b'"error"' not in got


async def test_answer_that_nobody_reads_is_given_up_before_it_takes_much_memory() -> None:
    backlog = UnreadOutput(4 * 2**20)
    async with Listening(site=Site(pipeline=PipelineOptions(backlog=backlog))) as server:
        engine = server.site.engine
        client = await server.connect(receive_buffer=2048)
        await shrink(server)
        client.send(request(max_tokens=390, n=24, stream=True, logprobs=True, top_logprobs=20, content="go"))
        most = 0
        async with asyncio.timeout(20):
            while not engine.stats()[0].output_tokens or not is_idle(server):
                most = max(most, backlog.num_bytes)
                await asyncio.sleep(0)
        assert 2**19 < most < 2**20 + 2**17, "a quarter is for one"
        assert backlog.num_bytes < 2**12
        assert engine.stats()[0].output_tokens < 24 * 390
        assert await server.answers()
        got = bytearray()
        while not got.endswith(b"0\r\n\r\n"):
            got += await client.reader.read(2**14)
        assert b"the answer was given up: its client has left 1 MiB of it unread" in got
        assert b"[DONE]" not in got


class WatchedBacklog(UnreadOutput):
    """Remembers the most that there was."""

    most = 0

    def add(self, holder: Any, num_bytes: int) -> None:
        self.most = max(self.most, self.num_bytes + num_bytes)
        super().add(holder, num_bytes)


async def test_many_that_read_nothing_take_no_more_memory_than_is_allowed_and_keep_nobody_out() -> None:
    backlog = WatchedBacklog(4 * 2**20)
    async with Listening(site=Site(pipeline=PipelineOptions(backlog=backlog))) as server:
        engine = server.site.engine
        clients = [await server.connect(receive_buffer=2048) for _ in range(6)]
        await shrink(server, len(clients))
        for client in clients:
            client.send(request(max_tokens=12, n=128, stream=True, logprobs=True, top_logprobs=20, content="go"))
        await until(lambda: engine.stats()[0].output_tokens)
        assert await server.answers()
        await until(lambda: is_idle(server), 60)
        assert 2**21 < backlog.most < 4 * 2**20 + 2**12
        assert engine.stats()[0].output_tokens < 6 * 128 * 12
        assert server.num_connections >= len(clients)


async def shrink(server: Listening, count: int = 1) -> Any:
    """Return the server's side of one of so many connections; each gets a small buffer of the kernel's."""
    await until(lambda: server.num_connections == count)
    sides: list[Any] = list(server.server.server_state.connections)
    for side in sides:
        side.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    return sides[0]


async def test_client_that_is_slow_but_reads_gets_all_of_its_answer() -> None:
    async with Listening(ServerOptions(request_s=0.6)) as server:
        client = await server.connect(receive_buffer=4096)
        await shrink(server)
        client.send(request(max_tokens=100, stream=True, logprobs=True, top_logprobs=5))
        text, began = b"", time.monotonic()
        while b"[DONE]" not in text:
            text += await client.reader.read(2048)
            await asyncio.sleep(0.02)
        assert time.monotonic() - began > 0.6
        chunks = [json.loads(line[6:]) for line in text.decode().splitlines() if line.startswith("data: {")]
        assert "".join(each["choices"][0]["delta"].get("content", "") for each in chunks) == answer("hello", 100)
        await client.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_vanishes_stops_its_generation(stream: bool) -> None:
    async with Listening(ServerOptions(request_s=1)) as server:
        server.site.stage.before_step = lambda batch: time.sleep(0.05)
        client = await server.connect()
        client.send(request(max_tokens=390, stream=stream))
        await until(lambda: not is_idle(server))
        vanish(client)
        await until(lambda: is_idle(server))
        assert server.site.engine.stats()[0].output_tokens < 200


async def send_for_ever(client: Client) -> None:
    while True:
        client.send(b" " * 2**16)
        await client.writer.drain()


def vanish(client: Client) -> None:
    """Let no packet reach a client any more, so that none is answered; where that cannot be done, leave."""
    sock = client.writer.get_extra_info("socket")
    if sys.platform != "linux":
        client.writer.transport.abort()
        return
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0, the bytes that pass
    attach_filter = 26  # socket(7)
    sock.setsockopt(socket.SOL_SOCKET, attach_filter, struct.pack("HL", 1, ctypes.addressof(program)))


async def test_body_that_is_still_coming_when_the_server_ends_is_a_503(caplog: pytest.LogCaptureFixture) -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(request()[:-5])
        await until(lambda: server.server.server_state.tasks)
        await asyncio.wait_for(server.site.drain.drain(20), 5)
        status, headers, body = await client.read()
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "5")
        assert "shutting down" in json.loads(body)["error"]["message"]
    assert "Traceback" not in caplog.text


async def test_client_that_leaves_before_its_body_is_whole_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallax_core.server.access_log")
    async with Listening() as server:
        client = await server.connect()
        client.send(request()[:-5])
        await until(lambda: server.server.server_state.tasks)
        await client.close()
        await until(lambda: not server.server.server_state.tasks)
        assert "POST /v1/chat/completions 499" in caplog.text
        assert await server.answers()
    assert "Traceback" not in caplog.text


async def test_client_that_takes_nothing_does_not_keep_the_server_from_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Listening() as server:
        client = await server.connect(receive_buffer=2048)
        server_side = await shrink(server)
        client.send(request(max_tokens=390, n=8, stream=True, logprobs=True, top_logprobs=20))
        await until(lambda: server_side.transport.get_write_buffer_size() > 0)
        await server.site.engine.stop()
        began = time.monotonic()
        server.server.should_exit = True
        await until(lambda: server.num_connections == 0)
        assert time.monotonic() - began < 2
        await client.close()
    assert "Traceback" not in caplog.text


async def test_kernel_is_told_when_a_client_counts_as_gone() -> None:
    async with Listening(ServerOptions(request_s=6)) as server:
        await server.connect()
        await until(lambda: server.num_connections == 1)
        [connection] = server.server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000


async def test_client_that_leaves_while_it_waits_stops_its_generation() -> None:
    async with Listening() as server:
        server.site.stage.before_step = lambda batch: time.sleep(0.01)
        for stream in (False, True):
            client = await server.connect()
            client.send(request(max_tokens=390, stream=stream))
            await until(lambda: not is_idle(server))
            await client.close()
            await until(lambda: is_idle(server))
        assert await server.answers()


async def test_body_over_the_limit_is_answered_while_it_is_being_sent() -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(head(6 * MAX_BODY_BYTES))
        status, _, body = await client.read()
        assert (status, json.loads(body)["error"]["type"]) == (413, "invalid_request_error")
        for _ in range(6):  # a client that looks at the answer only when it has sent everything finds it
            client.send(b" " * MAX_BODY_BYTES)
            await client.writer.drain()
        client.send(request(max_tokens=2))
        status, _, body = await client.read()
        assert (status, content_of(body)) == (200, answer("hello", 2))


@pytest.mark.parametrize(
    ("options", "headers", "status"),
    [
        (ServerOptions(), "", 413),
        (ServerOptions(keys=ApiKeys({"secret": "user"})), "", 401),
        (ServerOptions(hosts=("other",)), "", 403),
        (ServerOptions(), "Transfer-Encoding: chunked\r\n", 400),
    ],
)
async def test_client_that_closes_after_its_answer_finds_it_though_it_reads_only_in_the_end(
    options: ServerOptions, headers: str, status: int
) -> None:
    async with Listening(options) as server:
        client = await server.connect()
        client.send(head(8 * MAX_BODY_BYTES, "Connection: close\r\n" + headers))
        for _ in range(8):
            client.send(b" " * MAX_BODY_BYTES)
            await client.writer.drain()
            await asyncio.sleep(0.01)
        assert (await client.read())[0] == status
        assert await client.is_cut()
        assert await server.answers() or status in {401, 403}


@pytest.mark.parametrize("closes", [True, False])
async def test_rest_of_a_refused_body_is_read_within_bounds(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_DISCARDED", 2**20)
    async with Listening() as server:
        client = await server.connect()
        client.send(head(2**40, "Connection: close\r\n" if closes else ""))
        assert (await client.read())[0] == 413
        with pytest.raises(ConnectionError):
            await send_for_ever(client)
        await until(lambda: server.num_connections == 0)
        assert await server.answers()


async def test_client_that_sends_no_rest_of_its_refused_body_is_cut_off_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "QUIET_S", 0.1)
    async with Listening() as server:
        client = await server.connect()
        client.send(head(2**40, "Connection: close\r\n"))
        assert (await client.read())[0] == 413
        await until(lambda: server.num_connections == 0)


async def test_requests_in_one_packet_are_answered_in_order() -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(b"".join(request(max_tokens=count) for count in (5, 1, 3)))
        texts = [content_of((await client.read())[2]) for _ in range(3)]
        assert texts == [answer("hello", count) for count in (5, 1, 3)]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),  # TLS
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET /\xff HTTP/1.1\r\nHost: toy\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: toy\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: toy\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
        (b"POST /tokenize HTTP/1.1\r\nHost: toy\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (request("Transfer-Encoding: chunked\r\n"), 400),
        (b"GET / HTTP/1.1\r\nHost: toy\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 400),
    ],
)
async def test_what_is_no_http_is_refused_in_our_shape(data: bytes, status: int) -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(data)
        found, headers, body = await client.read()
        assert (found, headers["connection"]) == (status, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert await client.is_cut()
        assert await server.answers()


async def test_broken_chunk_after_an_answer_ends_the_connection_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(b"POST /nowhere HTTP/1.1\r\nHost: toy\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert (await client.read())[0] == 404
        client.send(b"zz\r\n")
        assert await client.is_cut()
        assert "Traceback" not in caplog.text
        assert await server.answers()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"model": "\xff"}', "not valid UTF-8"),
        (b'{"model": "toy", "messages": "\xc3\x28"}', "not valid UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_body_that_cannot_be_read_is_refused(body: bytes, reason: str) -> None:
    async with Listening() as server:
        client = await server.connect()
        client.send(head(len(body)) + body)
        status, _, found = await client.read()
        assert (status, json.loads(found)["error"]["type"]) == (400, "invalid_request_error")
        assert reason in json.loads(found)["error"]["message"]
        assert await server.answers()


async def test_many_connections_that_say_nothing_keep_nobody_out() -> None:
    async with Listening() as server:
        clients = [await server.connect() for _ in range(500)]
        await until(lambda: server.num_connections == len(clients))
        assert await server.answers()
        for client in clients:
            await client.close()
        await until(lambda: server.num_connections == 0)


@dataclass(eq=False)
class Silent:
    """A connection that has sent nothing."""

    ended: list[Silent]

    @property
    def transport(self) -> Silent:
        return self

    def abort(self) -> None:
        self.ended.append(self)


def test_usual_bound_of_silent_connections_ends_the_oldest_beyond_a_thousand() -> None:
    protocol: Any = make_protocol(30.0)
    ended: list[Silent] = []
    clients = [Silent(ended) for _ in range(1026)]
    for client in clients:
        protocol.silent.add(client)
    assert ended == clients[:2]
    protocol.silent.remove(clients[2])
    protocol.silent.add(Silent(ended))
    assert ended == clients[:2]
