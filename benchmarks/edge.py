"""Checks that a server survives clients that are slow, gone, broken, too numerous, or that send huge requests.

    python -m benchmarks.edge --out benchmarks/results/edge.json

It runs a real server with a real model and ``--request-timeout 3``. Each case reports the client's result and the time
it took, in seconds; after each case, another client must get the right answer in the usual time. "longest_wait_s" is
the longest response time of ``/version``, requested repeatedly during the case: the server was unresponsive that long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.clients import serve
from benchmarks.record import describe_run, write_report

MODEL = "smollm2-135m"
LIMIT_S = 3
CONNECTIONS = 10_000
STORY = "Tell me a long story about a dragon and a fox."
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
SO_ATTACH_FILTER = 26
"""The Linux socket option that attaches a packet filter to a socket (see socket(7))."""

Found = dict[str, Any]


class Connection:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def socket(self) -> socket.socket:
        """The underlying socket."""
        found: socket.socket = self.writer.get_extra_info("socket")
        return found

    async def read(self) -> tuple[int, bytes]:
        """Return the status and the body of the next response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        sizes = [line for line in head.splitlines() if line.startswith(b"content-length:")]
        return int(head.split()[1]), await self.reader.readexactly(int(sizes[0].split()[1]))

    async def wait_end(self) -> str:
        """Read until the connection ends, and return how it ended."""
        try:
            while await self.reader.read(2**16):
                pass
        except ConnectionError as error:
            return type(error).__name__
        return "closed"


class TestedServer:
    """The server that the cases are run against."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._longest = 0.0

    async def connect(self, receive_buffer: int = 0) -> Connection:
        """Return a connection; with a small ``receive_buffer`` (bytes) it soon stops receiving unless it is read."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        return Connection(*await asyncio.open_connection(sock=sock, limit=2**16))

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send a request on a new connection, and return the status and body of the response."""
        client = await self.connect()
        client.writer.write(data)
        found = await client.read()
        client.writer.close()
        return found

    async def fetch(self, path: str) -> bytes:
        """Return the body of a GET request."""
        _, body = await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return body

    async def count_running(self) -> int:
        """Return the number of running requests on the server."""
        lines = (await self.fetch("/metrics")).decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("parallax_requests_running{")))

    async def until_idle(self) -> None:
        """Wait until the server runs no request."""
        async with asyncio.timeout(60):
            while await self.count_running():  # noqa: ASYNC110 -- there is no event for it
                await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Request ``/version`` repeatedly, and note the longest response time."""

        async def ping() -> None:
            while True:
                begun = time.perf_counter()
                await self.fetch("/version")
                self._longest = max(self._longest, time.perf_counter() - begun)
                await asyncio.sleep(0.02)

        self._longest = 0.0
        pinging = asyncio.create_task(ping())
        try:
            yield
        finally:
            await asyncio.sleep(0.05)
            pinging.cancel()

    async def try_case(self, name: str, case: Callable[[TestedServer], Awaitable[Found]]) -> Found:
        """Run a case, then check that the server still answers; return the report of the case."""
        begun = time.perf_counter()
        async with self.listening():
            found = await case(self)
        seconds = time.perf_counter() - begun
        status, body = await self.ask(make_request(QUESTION, temperature=0))
        assert status == 200, body  # noqa: PLR2004 -- fine
        assert json.loads(body)["choices"][0]["message"]["content"] == ANSWER
        times = {"seconds": round(seconds, 2), "longest_wait_s": round(self._longest, 3)}
        return {"case": name, **found, **times, "goes_on": True}


def make_request(content: str = STORY, route: str = "/v1/chat/completions", **fields: Any) -> bytes:  # noqa: ANN401 -- any
    """Return the bytes of a generation request."""
    asked = {"messages": [{"role": "user", "content": content}]} if "chat" in route else {}
    return post(json.dumps({"model": MODEL, **asked, **fields}).encode(), route)


def post(body: bytes, route: str = "/v1/chat/completions", size: int | None = None) -> bytes:
    """Return the bytes of a POST request with ``body``, declared as JSON of ``size`` bytes (default: its own size)."""
    length = len(body) if size is None else size
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


async def read_slowly(server: TestedServer) -> Found:
    """Request a very long stream, and read none of it."""
    client = await server.connect(receive_buffer=4096)
    client.writer.write(make_request(stream=True, max_tokens=1500, n=8, logprobs=True, top_logprobs=20))
    await asyncio.sleep(0.5)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    begun = time.perf_counter()
    await server.until_idle()
    idle_s = time.perf_counter() - begun
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    return {"got": await client.wait_end(), "generation_ended_after_s": round(idle_s, 1)}


async def vanish(server: TestedServer, *, is_stream: bool) -> Found:
    """Send a request, then vanish without closing: packets of the server no longer arrive, and none is acknowledged."""
    client = await server.connect()
    client.writer.write(make_request(stream=is_stream, max_tokens=3000))
    while not await server.count_running():  # noqa: ASYNC110 -- there is no event for it
        await asyncio.sleep(0.05)
    drop_packets(client.socket)
    begun = time.perf_counter()
    await server.until_idle()
    client.writer.transport.abort()
    return {"generation_ended_after_s": round(time.perf_counter() - begun, 1)}


def drop_packets(sock: socket.socket) -> None:
    """Drop every packet for a socket (Linux), with a filter of one instruction that lets 0 bytes pass."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    option = struct.pack("HL", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)


async def stall(server: TestedServer, data: bytes) -> Found:
    """Send ``data``, the beginning of a request, and nothing more."""
    client = await server.connect()
    client.writer.write(data)
    begun = time.perf_counter()
    text = b""
    with contextlib.suppress(ConnectionError):
        while piece := await client.reader.read(2**16):
            text += piece
    return {"got": text.split(b"\r\n")[0].decode() or "closed", "after_s": round(time.perf_counter() - begun, 1)}


async def send_much(server: TestedServer) -> Found:
    """Send a whole body of 100 MB, and only then read the response."""
    client, piece = await server.connect(), b" " * 2**20
    client.writer.write(post(b"", size=100 * 2**20))
    for _ in range(100):
        client.writer.write(piece)
        await client.writer.drain()
    status, body = await client.read()
    client.writer.write(make_request(QUESTION, max_tokens=1))
    again, _ = await client.read()
    return {"got": status, "error": json.loads(body)["error"]["message"], "on_the_same_connection_then": again}


async def send_prompt(server: TestedServer, prompt: object) -> Found:
    """Send a prompt that no model accepts."""
    status, body = await server.ask(make_request(route="/v1/completions", prompt=prompt))
    error = json.loads(body)["error"]
    return {"got": status, "param": error["param"], "error": error["message"][:120]}


async def send_bytes(server: TestedServer, data: bytes) -> Found:
    """Send bytes that are not a valid request."""
    status, body = await server.ask(data)
    return {"got": status, "error": json.loads(body)["error"]["message"][:120]}


async def pipeline(server: TestedServer) -> Found:
    """Send three pipelined requests on one connection."""
    client = await server.connect()
    client.writer.write(b"".join(make_request(QUESTION, temperature=0, max_tokens=count) for count in (5, 1, 3)))
    answers = [json.loads((await client.read())[1])["usage"]["completion_tokens"] for _ in range(3)]
    assert answers == [5, 1, 3]
    return {"got": [200, 200, 200]}


async def connect_many(server: TestedServer) -> Found:
    """Open `CONNECTIONS` connections, each of which sends one request and stays open."""
    got: Counter[str] = Counter()
    times: list[float] = []
    gate = asyncio.Semaphore(200)

    async def visit() -> Connection | None:
        async with gate:
            begun = time.perf_counter()
            try:
                client = await server.connect()
                client.writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                status, _ = await client.read()
            except (OSError, asyncio.IncompleteReadError) as error:
                got[type(error).__name__] += 1
                return None
            times.append(time.perf_counter() - begun)
            got[str(status)] += 1
            return client

    clients = await asyncio.gather(*(visit() for _ in range(CONNECTIONS)))
    begun = time.perf_counter()
    status, _ = await server.ask(make_request(QUESTION, temperature=0))
    answered_s = time.perf_counter() - begun
    for client in filter(None, clients):
        client.writer.transport.abort()
    median = sorted(times)[len(times) // 2]
    return {
        "got": dict(got),
        "median_s": round(median, 4),
        "question_among_them": status,
        "took_s": round(answered_s, 2),
    }


async def hold(server: TestedServer) -> Found:
    """Open `CONNECTIONS` connections that send nothing, and send a request on another one."""
    clients = [await server.connect() for _ in range(CONNECTIONS)]
    begun = time.perf_counter()
    status, _ = await server.ask(make_request(QUESTION, temperature=0))
    took_s = time.perf_counter() - begun
    ends = Counter(await asyncio.gather(*(client.wait_end() for client in clients)))
    return {"got": dict(ends), "question_among_them": status, "took_s": round(took_s, 2)}


async def try_all(port: int) -> list[Found]:
    """Run every case, and return the reports."""
    server = TestedServer(port)
    both = make_request(QUESTION).replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    fields: dict[str, Any] = {f"k{number}": 0 for number in range(500_000)}
    many = make_request(QUESTION, **fields)
    cases: list[tuple[str, Callable[[TestedServer], Awaitable[Found]]]] = [
        ("takes nothing of its stream", read_slowly),
        ("vanishes during its stream", lambda server: vanish(server, is_stream=True)),
        ("vanishes while it waits", lambda server: vanish(server, is_stream=False)),
        ("connects and says nothing", lambda server: stall(server, b"")),
        ("never ends the head of its request", lambda server: stall(server, head)),
        ("never ends its body", lambda server: stall(server, post(b"{", size=100))),
        ("sends 100 MB", send_much),
        ("sends a prompt of 1,000,000 tokens", lambda server: send_prompt(server, [1] * 1_000_000)),
        ("sends a prompt of 4 MB of text", lambda server: send_prompt(server, "word " * 800_000)),
        ("sends 1,000,000 prompts", lambda server: send_prompt(server, ["a"] * 1_000_000)),
        ("sends 1,000,000 wrong tokens", lambda server: send_prompt(server, [-1] * 1_000_000)),
        ("sends 500,000 unknown fields", lambda server: send_bytes(server, many)),
        ("sends a field twice", lambda server: send_bytes(server, post(b'{"seed": 1, "seed": 2}'))),
        ("sends invalid UTF-8", lambda server: send_bytes(server, post(b'{"model": "\xff\xfe"}'))),
        ("sends 100,000 open brackets", lambda server: send_bytes(server, post(b"[" * 100_000))),
        ("sends no HTTP", lambda server: send_bytes(server, b"\x16\x03\x01\x02\x00\r\n\r\n")),
        ("sends Content-Length and Transfer-Encoding", lambda server: send_bytes(server, both)),
        ("sends three requests at once", pipeline),
        (f"comes {CONNECTIONS} times and stays", connect_many),
        (f"connects {CONNECTIONS} times and says nothing", hold),
    ]
    return [await server.try_case(name, case) for name, case in cases]


def main() -> None:
    """Run all cases, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serve(MODEL, "--request-timeout", str(LIMIT_S)) as url:
        cases = asyncio.run(try_all(int(url.removesuffix("/v1").rpartition(":")[2])))
    found = {"cases": cases, "model": MODEL, **describe_run(["benchmarks.edge"], ["fastapi", "uvicorn", "h11"])}
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
