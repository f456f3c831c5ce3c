"""What a server does with clients that are slow, gone, enormous, broken or very many; and whether it goes on.

    python -m benchmarks.edge --out benchmarks/results/edge.json

A real server with a real model and ``--request-timeout 3``. Every case says what such a client got, and after how many
seconds; after each, another client must get the right answer within the usual time. "longest_wait_s" is the longest
that ``/version`` took meanwhile, asked over and over: for so long the server was deaf.
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

from benchmarks.clients import MODEL, serve
from benchmarks.record import describe_run, write_report

LIMIT_S = 3
CONNECTIONS = 10_000
STORY = "Tell me a long story about a dragon and a fox."
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
SO_ATTACH_FILTER = 26
"""Linux: a program that says which packets a socket gets (see socket(7))."""

Found = dict[str, Any]


class Guest:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def socket(self) -> socket.socket:
        """The socket below."""
        found: socket.socket = self.writer.get_extra_info("socket")
        return found

    async def read(self) -> tuple[int, bytes]:
        """Return the status and the body of the next response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        sizes = [line for line in head.splitlines() if line.startswith(b"content-length:")]
        return int(head.split()[1]), await self.reader.readexactly(int(sizes[0].split()[1]))

    async def wait_end(self) -> str:
        """Read until the connection ends, and say how it does."""
        try:
            while await self.reader.read(2**16):
                pass
        except ConnectionError as error:
            return type(error).__name__
        return "closed"


class Site:
    """The server, and what is tried on it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._longest = 0.0

    async def connect(self, receive_buffer: int = 0) -> Guest:
        """Return a connection; with a small buffer it takes little of what it is sent."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        return Guest(*await asyncio.open_connection(sock=sock, limit=2**16))

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send a request on a connection of its own, and return the status and body of the response."""
        guest = await self.connect()
        guest.writer.write(data)
        found = await guest.read()
        guest.writer.close()
        return found

    async def fetch(self, path: str) -> bytes:
        """Return what a path shows."""
        _, body = await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return body

    async def count_running(self) -> int:
        """Return how many requests the server works on."""
        lines = (await self.fetch("/metrics")).decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("parallax_requests_running{")))

    async def until_idle(self) -> None:
        """Wait until the server works on nothing."""
        async with asyncio.timeout(60):
            while await self.count_running():  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Ask something small over and over, and note how long it took at most."""

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

    async def try_case(self, name: str, case: Callable[[Site], Awaitable[Found]]) -> Found:
        """Try something, then see whether the server goes on."""
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
    """Return the bytes of a request."""
    asked = {"messages": [{"role": "user", "content": content}]} if "chat" in route else {}
    return post(json.dumps({"model": MODEL, **asked, **fields}).encode(), route)


def post(body: bytes, route: str = "/v1/chat/completions", size: int | None = None) -> bytes:
    """Return the bytes of a request with a body of JSON, or so they say."""
    length = len(body) if size is None else size
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return head.encode() + body


async def read_slowly(site: Site) -> Found:
    """Ask for very much, and take none of it."""
    guest = await site.connect(receive_buffer=4096)
    guest.writer.write(make_request(stream=True, max_tokens=1500, n=8, logprobs=True, top_logprobs=20))
    await asyncio.sleep(0.5)
    guest.writer.transport.pause_reading()  # type: ignore[attr-defined]
    begun = time.perf_counter()
    await site.until_idle()
    idle_s = time.perf_counter() - begun
    guest.writer.transport.resume_reading()  # type: ignore[attr-defined]
    return {"got": await guest.wait_end(), "generation_ended_after_s": round(idle_s, 1)}


async def vanish(site: Site, *, is_stream: bool) -> Found:
    """Ask, and then be gone without a word: no packet of the server's arrives any more, and none is answered."""
    guest = await site.connect()
    guest.writer.write(make_request(stream=is_stream, max_tokens=3000))
    while not await site.count_running():  # noqa: ASYNC110 -- nobody tells
        await asyncio.sleep(0.05)
    drop_packets(guest.socket)
    begun = time.perf_counter()
    await site.until_idle()
    guest.writer.transport.abort()
    return {"generation_ended_after_s": round(time.perf_counter() - begun, 1)}


def drop_packets(sock: socket.socket) -> None:
    """Let no packet reach a socket any more (Linux): a filter of one instruction, which returns that 0 bytes pass."""
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    option = struct.pack("HL", 1, ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)


async def stall(site: Site, data: bytes) -> Found:
    """Begin something and never go on."""
    guest = await site.connect()
    guest.writer.write(data)
    begun = time.perf_counter()
    text = b""
    with contextlib.suppress(ConnectionError):
        while piece := await guest.reader.read(2**16):
            text += piece
    return {"got": text.split(b"\r\n")[0].decode() or "closed", "after_s": round(time.perf_counter() - begun, 1)}


async def send_much(site: Site) -> Found:
    """Send a body of 100 MB to its end, and only then look at the answer."""
    guest, piece = await site.connect(), b" " * 2**20
    guest.writer.write(post(b"", size=100 * 2**20))
    for _ in range(100):
        guest.writer.write(piece)
        await guest.writer.drain()
    status, body = await guest.read()
    guest.writer.write(make_request(QUESTION, max_tokens=1))
    again, _ = await guest.read()
    return {"got": status, "error": json.loads(body)["error"]["message"], "on_the_same_connection_then": again}


async def send_prompt(site: Site, prompt: object) -> Found:
    """Send a prompt that no model could hold."""
    status, body = await site.ask(make_request(route="/v1/completions", prompt=prompt))
    error = json.loads(body)["error"]
    return {"got": status, "param": error["param"], "error": error["message"][:120]}


async def send_bytes(site: Site, data: bytes) -> Found:
    """Send what is no request."""
    status, body = await site.ask(data)
    return {"got": status, "error": json.loads(body)["error"]["message"][:120]}


async def pipeline(site: Site) -> Found:
    """Send three requests at once on one connection."""
    guest = await site.connect()
    guest.writer.write(b"".join(make_request(QUESTION, temperature=0, max_tokens=count) for count in (5, 1, 3)))
    answers = [json.loads((await guest.read())[1])["usage"]["completion_tokens"] for _ in range(3)]
    assert answers == [5, 1, 3]
    return {"got": [200, 200, 200]}


async def crowd(site: Site) -> Found:
    """Open very many connections; each asks one thing, and stays."""
    got: Counter[str] = Counter()
    times: list[float] = []
    gate = asyncio.Semaphore(200)

    async def visit() -> Guest | None:
        async with gate:
            begun = time.perf_counter()
            try:
                guest = await site.connect()
                guest.writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
                status, _ = await guest.read()
            except (OSError, asyncio.IncompleteReadError) as error:
                got[type(error).__name__] += 1
                return None
            times.append(time.perf_counter() - begun)
            got[str(status)] += 1
            return guest

    guests = await asyncio.gather(*(visit() for _ in range(CONNECTIONS)))
    begun = time.perf_counter()
    status, _ = await site.ask(make_request(QUESTION, temperature=0))
    answered_s = time.perf_counter() - begun
    for guest in filter(None, guests):
        guest.writer.transport.abort()
    median = sorted(times)[len(times) // 2]
    return {
        "got": dict(got),
        "median_s": round(median, 4),
        "question_among_them": status,
        "took_s": round(answered_s, 2),
    }


async def hold(site: Site) -> Found:
    """Open very many connections at once that say nothing; ask a question beside them."""
    guests = [await site.connect() for _ in range(CONNECTIONS)]
    begun = time.perf_counter()
    status, _ = await site.ask(make_request(QUESTION, temperature=0))
    took_s = time.perf_counter() - begun
    ends = Counter(await asyncio.gather(*(guest.wait_end() for guest in guests)))
    return {"got": dict(ends), "question_among_them": status, "took_s": round(took_s, 2)}


async def try_all(port: int) -> list[Found]:
    """Try every case."""
    site = Site(port)
    both = make_request(QUESTION).replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    fields: dict[str, Any] = {f"k{number}": 0 for number in range(500_000)}
    many = make_request(QUESTION, **fields)
    cases: list[tuple[str, Callable[[Site], Awaitable[Found]]]] = [
        ("takes nothing of its stream", read_slowly),
        ("vanishes during its stream", lambda site: vanish(site, is_stream=True)),
        ("vanishes while it waits", lambda site: vanish(site, is_stream=False)),
        ("connects and says nothing", lambda site: stall(site, b"")),
        ("never ends the head of its request", lambda site: stall(site, head)),
        ("never ends its body", lambda site: stall(site, post(b"{", size=100))),
        ("sends 100 MB", send_much),
        ("sends a prompt of 1,000,000 tokens", lambda site: send_prompt(site, [1] * 1_000_000)),
        ("sends a prompt of 4 MB of text", lambda site: send_prompt(site, "word " * 800_000)),
        ("sends 1,000,000 prompts", lambda site: send_prompt(site, ["a"] * 1_000_000)),
        ("sends 1,000,000 wrong tokens", lambda site: send_prompt(site, [-1] * 1_000_000)),
        ("sends 500,000 unknown fields", lambda site: send_bytes(site, many)),
        ("sends a field twice", lambda site: send_bytes(site, post(b'{"seed": 1, "seed": 2}'))),
        ("sends invalid UTF-8", lambda site: send_bytes(site, post(b'{"model": "\xff\xfe"}'))),
        ("sends 100,000 open brackets", lambda site: send_bytes(site, post(b"[" * 100_000))),
        ("sends no HTTP", lambda site: send_bytes(site, b"\x16\x03\x01\x02\x00\r\n\r\n")),
        ("sends Content-Length and Transfer-Encoding", lambda site: send_bytes(site, both)),
        ("sends three requests at once", pipeline),
        (f"comes {CONNECTIONS} times and stays", crowd),
        (f"connects {CONNECTIONS} times and says nothing", hold),
    ]
    return [await site.try_case(name, case) for name, case in cases]


def main() -> None:
    """Try, print, and write with what a finding needs beside it."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with serve("--request-timeout", str(LIMIT_S)) as url:
        cases = asyncio.run(try_all(int(url.removesuffix("/v1").rpartition(":")[2])))
    found = {"cases": cases, "model": MODEL, **describe_run(["benchmarks.edge"], ["fastapi", "uvicorn", "h11"])}
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
