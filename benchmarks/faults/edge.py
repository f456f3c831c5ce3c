"""Scenarios of clients of one server: slow, gone, broken, too numerous, greedy, or leaving at a random moment."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import random
import resource
import shutil
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.faults.run import Figures, Run, private_folder
from benchmarks.processes import read_resident
from benchmarks.record import find_model
from benchmarks.servers import cluster, parallax, read_metric, read_ready, running
from tests.e2e.tiny import write_tiny

LIMIT_S = 3
CONNECTIONS = 10_000
STORY = "Tell me a long story about a dragon and a fox."
QUESTION = "What is the capital of France?"
SO_ATTACH_FILTER = 26
"""The Linux socket option that attaches a packet filter to a socket (see socket(7))."""
RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing resets the connection."""
OPENINGS = ("hello there", "hello you", "once upon a time there was a fox, and ", "the fox and the dragon ")
GRAMMARS = ("[a-m ,]{20,200}", "([a-z]{1,9} ){3,40}", "(fox|dragon)( (and|or) (fox|dragon)){0,30}", "[a-z .,?]*")
MIB = 2**20


class Connection:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        sizes = [line for line in head.splitlines() if line.startswith(b"content-length:")]
        return int(head.split()[1]), await self.reader.readexactly(int(sizes[0].split()[1]))

    async def read_all(self) -> bytes:
        text = b""
        with contextlib.suppress(ConnectionError):
            while piece := await self.reader.read(2**16):
                text = text or piece
        return text


class Target:
    """The server that the cases are run against."""

    def __init__(self, url: str, model: str, pid: int) -> None:
        self.url, self.model, self.pid = url, model, pid
        self._port = int(url.removesuffix("/v1").rpartition(":")[2])

    async def connect(self, receive_buffer: int = 0) -> Connection:
        """Return a connection; with a small ``receive_buffer`` (bytes) it soon stops receiving unless it is read."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
        return Connection(*await asyncio.open_connection(sock=sock, limit=2**16))

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        client = await self.connect()
        client.writer.write(data)
        found = await client.read()
        client.writer.close()
        return found

    def chat(self, content: str = STORY, **fields: Any) -> bytes:
        return post(json.dumps({"model": self.model, "messages": [{"role": "user", "content": content}], **fields}))

    def complete(self, prompt: object, **fields: Any) -> bytes:
        body = {"model": self.model, "prompt": prompt, "ignore_eos": True, "temperature": 0, **fields}
        return post(json.dumps(body), "/v1/completions")

    async def until_idle(self) -> float:
        begun = time.perf_counter()
        async with asyncio.timeout(60):
            while await asyncio.to_thread(read_metric, self.url, "parallax_requests_running"):
                await asyncio.sleep(0.1)
        return round(time.perf_counter() - begun, 1)

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[list[float]]:
        times = [0.0]

        async def ping() -> None:
            while True:
                begun = time.perf_counter()
                await self.ask(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                times.append(time.perf_counter() - begun)
                await asyncio.sleep(0.02)

        pinging = asyncio.create_task(ping())
        try:
            yield times
        finally:
            await asyncio.sleep(0.05)
            pinging.cancel()


def post(body: str | bytes, route: str = "/v1/chat/completions", size: int | None = None) -> bytes:
    """Return the bytes of a POST request with ``body``, declared as JSON of ``size`` bytes (default: its own size)."""
    data = body.encode() if isinstance(body, str) else body
    length = len(data) if size is None else size
    kind = f"Content-Type: application/json\r\nContent-Length: {length}"
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n"
    return head.encode() + data


@contextlib.contextmanager
def serving(run: Run, *options: str) -> Iterator[Target]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with private_folder() as private:
        folder = run.options.model or write_tiny(private / "tiny", find_model())
        template = find_model() / "chat_template.jinja"
        if template.exists():
            shutil.copy(template, folder)
        common = ("--port", "0", "--backend", "torch", "--dtype", "float32")
        command = parallax("serve", str(folder), *common, *options)
        with running(command) as process:
            url, model = read_ready(process)
            yield Target(url, model, process.popen.pid)


async def read_slowly(target: Target) -> Figures:
    client = await target.connect(receive_buffer=4096)
    client.writer.write(target.chat(stream=True, max_tokens=400, n=8, logprobs=True, top_logprobs=20, ignore_eos=True))
    await asyncio.sleep(0.5)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    idle_s = await target.until_idle()
    client.writer.transport.abort()
    return {"generation_ended_after_s": idle_s}


async def vanish(target: Target, *, is_stream: bool) -> Figures:
    """Send a request, then vanish without closing: packets of the server no longer arrive, and none is acknowledged."""
    client = await target.connect()
    client.writer.write(target.chat(stream=is_stream, max_tokens=400, n=8, ignore_eos=True))
    while not await asyncio.to_thread(read_metric, target.url, "parallax_requests_running"):
        await asyncio.sleep(0.01)
    program = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # one instruction: 0 bytes pass
    option = struct.pack("HL", 1, ctypes.addressof(program))
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, option)
    idle_s = await target.until_idle()
    client.writer.transport.abort()
    return {"generation_ended_after_s": idle_s}


async def stall(target: Target, data: bytes) -> Figures:
    client, begun = await target.connect(), time.perf_counter()
    client.writer.write(data)
    text = await client.read_all()
    took_s = time.perf_counter() - begun
    return {
        "got": text.split(b"\r\n")[0].decode() or "closed",
        "after_s": round(took_s, 1),
        "wrong": took_s > 3 * LIMIT_S,
    }


async def send_much(target: Target) -> Figures:
    client, piece = await target.connect(), b" " * MIB
    client.writer.write(post(b"", size=100 * MIB))
    for _ in range(100):
        client.writer.write(piece)
        await client.writer.drain()
    status, _ = await client.read()
    client.writer.write(target.chat(QUESTION, max_tokens=1))
    again, _ = await client.read()
    return {"got": status, "on_the_same_connection_then": again, "wrong": (status, again) != (413, 200)}


async def refuse(target: Target, data: bytes) -> Figures:
    status, body = await target.ask(data)
    return {"got": status, "error": json.loads(body)["error"]["message"][:120], "wrong": status // 100 != 4}


async def pipeline(target: Target) -> Figures:
    client = await target.connect()
    sizes = (5, 1, 3)
    client.writer.write(b"".join(target.complete(QUESTION, max_tokens=size) for size in sizes))
    got = [json.loads((await client.read())[1])["usage"]["completion_tokens"] for _ in sizes]
    return {"got": got, "wrong": got != list(sizes)}


async def connect_many(target: Target, *, is_silent: bool) -> Figures:
    """Open `CONNECTIONS` connections that send one request each, or nothing, and stay; another client asks."""
    got, gate = Counter[str](), asyncio.Semaphore(200)

    async def visit() -> Connection | None:
        async with gate:
            try:
                client = await target.connect()
                if not is_silent:
                    client.writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    got[str((await client.read())[0])] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                got[type(error).__name__] += 1
                return None
            return client

    clients = list(filter(None, await asyncio.gather(*(visit() for _ in range(CONNECTIONS)))))
    begun = time.perf_counter()
    status, _ = await target.ask(target.chat(QUESTION, max_tokens=4))
    took_s = time.perf_counter() - begun
    for client in clients:
        client.writer.transport.abort()
    return {"got": dict(got), "question_took_s": round(took_s, 2), "wrong": status != 200}


Case = Callable[[Target], Awaitable[Figures]]


def list_cases(target: Target) -> dict[str, Case]:
    both = target.chat(QUESTION).replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type")
    many = target.chat(QUESTION, **{f"k{number}": 0 for number in range(500_000)})
    refused = {
        "sends a prompt of 1,000,000 tokens": target.complete([1] * 1_000_000),
        "sends a prompt of 4 MB of text": target.complete("word " * 800_000),
        "sends 1,000,000 prompts": target.complete(["a"] * 1_000_000),
        "sends 1,000,000 wrong tokens": target.complete([-1] * 1_000_000),
        "sends 500,000 unknown fields": many,
        "sends a field twice": post(b'{"seed": 1, "seed": 2}'),
        "sends invalid UTF-8": post(b'{"model": "\xff\xfe"}'),
        "sends 100,000 open brackets": post(b"[" * 100_000),
        "sends no HTTP": b"\x16\x03\x01\x02\x00\r\n\r\n",
        "sends Content-Length and Transfer-Encoding": both,
    }
    return {
        "takes nothing of its stream": read_slowly,
        "vanishes during its stream": partial(vanish, is_stream=True),
        "vanishes while it waits": partial(vanish, is_stream=False),
        "connects and says nothing": partial(stall, data=b""),
        "never ends its head": partial(stall, data=b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"),
        "never ends its body": partial(stall, data=post(b"{", size=100)),
        "sends 100 MB": send_much,
        **{name: partial(refuse, data=data) for name, data in refused.items()},
        "sends three requests at once": pipeline,
        f"comes {CONNECTIONS} times and stays": partial(connect_many, is_silent=False),
        f"connects {CONNECTIONS} times and says nothing": partial(connect_many, is_silent=True),
    }


async def try_case(target: Target, case: Case, right: bytes) -> Figures:
    async with target.listening() as times, asyncio.timeout(180):
        try:
            found = await case(target)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            found = {"got": type(error).__name__}
    _, body = await target.ask(target.complete(QUESTION, max_tokens=8))
    goes_on = json.loads(body)["choices"] == json.loads(right)["choices"]
    wrong = bool(found.pop("wrong", False))
    return found | {"longest_wait_s": round(max(times), 3), "faults": {"wrong": wrong, "does not go on": not goes_on}}


def edge(run: Run) -> None:
    """Try clients that are slow, gone, broken or too numerous; after each, another client gets the right answer.

    ``longest_wait_s`` is the longest response time of ``/version`` meanwhile: the server was unresponsive that long.
    """
    with serving(run, "--set", f"request_timeout={LIMIT_S}") as target:
        _, right = asyncio.run(target.ask(target.complete(QUESTION, max_tokens=8)))
        for name, case in list_cases(target).items():
            run.part(name, lambda: asyncio.run(try_case(target, case, right)))


async def leave(target: Target, draw: random.Random, *, has_grammar: bool) -> str:
    content = draw.choice(OPENINGS) + "".join(draw.choices("abc ", k=draw.randrange(60)))
    grammar = {"guided_regex": draw.choice(GRAMMARS)} if has_grammar else {"ignore_eos": True}
    fields = {"stream": draw.random() < 0.7, "n": draw.choice([1, 1, 1, 3]), "max_tokens": draw.choice([1, 8, 40, 150])}
    data = target.chat(content, seed=draw.randrange(100), temperature=draw.choice([0, 1]), **fields, **grammar)
    client = await target.connect()
    try:
        if draw.random() < 0.1:
            client.writer.write(data[: draw.randrange(len(data))])
            await asyncio.sleep(draw.uniform(0, 0.01))
            return "before the body was whole"
        client.writer.write(data)
        text = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(draw.uniform(0, 0.5)):
                while piece := await client.reader.read(2**16):
                    text = text[-8:] + piece if text else piece
                    if b"[DONE]" in text or b"\r\n\r\n{" in text:
                        return "at the end"
        return "in a stream" if text else "while it waited"
    finally:
        if draw.random() < 0.5:
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.writer.transport.abort()


async def measure_cancels(target: Target, times: int, draw: random.Random, *, has_grammar: bool) -> Figures:
    ends, right, resident, wrong = Counter[str](), dict[str, str](), list[float](), 0

    async def stay() -> None:
        nonlocal wrong
        while True:
            for opening in OPENINGS:
                _, body = await target.ask(target.complete(opening, max_tokens=12))
                text = json.loads(body).get("choices", [{"text": right.get(opening, "")}])[0]["text"]
                wrong += right.setdefault(opening, text) != text

    async def work(left: Iterator[int]) -> None:
        for _ in left:
            ends[await leave(target, draw, has_grammar=has_grammar)] += 1

    staying = asyncio.create_task(stay())
    for part in range(11):  # the first warms up
        left = iter(range(times // 10))
        await asyncio.gather(*(work(left) for _ in range(16 if part else 200)))
        resident.append(round(read_resident(target.pid) / MIB, 1))
    staying.cancel()
    await asyncio.gather(staying, return_exceptions=True)
    idle_s = await target.until_idle()
    await asyncio.sleep(1.0)
    [replica] = cluster(target.url)["replicas"]
    growth = resident[-1] / resident[2] - 1
    held = {
        "requests": replica["requests"],
        "pending": replica["pending_tokens"],
        "health": replica["status"] != "ready",
    }
    return {
        "ends": dict(ends),
        "idle_after_s": idle_s,
        "resident_mib": resident,
        "growth": round(growth, 4),
        "faults": held | {"wrong answers": wrong, "memory grew": growth > 0.05, "lost": replica["status"] != "ready"},
    }


def cancels(run: Run) -> None:
    """Cancel 10,000 requests at random moments, with and without grammars: everything that they held is released.

    Clients leave before the body is complete, while they wait, or in the middle of a stream, by closing or resetting.
    Others read their answers to the end meanwhile, and check them.
    """
    for name in ("plain", "grammars"):
        with serving(run, "--set", "max_waiting=1000") as target:
            work = partial(
                measure_cancels, target, run.times(10_000), random.Random(20), has_grammar=name == "grammars"
            )
            run.part(name, lambda: asyncio.run(work()))
