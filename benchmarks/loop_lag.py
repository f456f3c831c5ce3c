"""Measures how much one client can delay others: the lag of the server's event loop, and the pauses of a stream.

    python -m benchmarks.loop_lag MODEL_FOLDER --out benchmarks/results/loop-lag.json

The server runs in its own process, with the tokenizer of the model, over a stage that sleeps 10 ms in every step and
always draws the same word, with made-up log-probabilities; ``--max-body`` is raised to 17 MiB. This process streams
answers all the time; the attacks come from another process. For each attack the report has the lag of the loop, sampled
every 5 ms, as a histogram ("at_most_ms"); its maximum; the CPU time of the longest callback; the longest pause between
two chunks of the stream; and how much longer that is than the median of three runs without an attack. The goal is
100 ms. The pauses need an otherwise idle machine; CPU time does not.

The attacks: bodies of 16 MiB of several kinds; one request for 16 answers of 4,096 tokens with ``top_logprobs`` 20; a
prompt that evicts 2,000 cached ones; and 100 ordinary streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from benchmarks.host import STORED, STORED_PAGES, fetch_json, make_request, run_host
from benchmarks.record import describe_run, write_report

GOAL_MS = 100
MIB = 2**20
BODY = 16 * MIB
STREAMS, STREAM_TOKENS = 100, 200
ANSWERS, TOKENS, TOP = 16, 4096, 20
ASKING = 64
"""Concurrent requests while the prefix cache is filled."""
QUIET_S, TIMES = 5, 3
PACKAGES = ("fastapi", "uvicorn", "h11", "tokenizers", "msgspec")
SEEN = {200, 400, 429}

Attack = Callable[[int], Coroutine[Any, Any, None]]


class Victim:
    """A client that streams answers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._latest = 0.0
        self.longest_s = 0.0

    async def stream(self) -> None:
        """Stream one answer after the other, and note the longest pause within one."""
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(make_request("/v1/completions", ask([1, 2, 3], max_tokens=4000, stream=True)))
            await reader.readuntil(b"\r\n\r\n")
            await self._read(reader)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        last, self._latest = b"", 0.0
        while b"[DONE]" not in last:
            piece = await reader.read(2**16)
            assert piece, "the answer broke off"
            now = time.perf_counter()
            if self._latest:
                self.longest_s = max(self.longest_s, now - self._latest)
            last, self._latest = last[-16:] + piece, now


def ask(prompt: list[int], **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields of a request
    """Return the body of a request for a completion."""
    return {"prompt": prompt, "ignore_eos": True, "temperature": 0, **fields}


async def post(port: int, data: bytes) -> int:
    """Send a request, read the whole response, and return its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data.replace(b"Host: x", b"Host: x\r\nConnection: close", 1))
    head = await reader.readuntil(b"\r\n\r\n")
    while await reader.read(MIB):
        pass
    writer.close()
    status = int(head.split()[1])
    assert status in SEEN, head
    return status


async def send_body(port: int, part: bytes, route: str = "/v1/completions") -> None:
    """Send a body of 16 MiB whose prompt is a list of ``part``."""
    begin, end = b'{"model": "bench", "prompt": [', b"1]}"
    body = begin + part * ((BODY - len(begin) - len(end)) // len(part)) + end
    head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    await post(port, head.encode() + body)


async def send_text(port: int) -> None:
    """Send a text of 16 MiB to be tokenized."""
    words = [str(number) for number in range(10_000)]
    draw = random.Random(2)  # noqa: S311 -- to be the same every time
    text = " ".join(draw.choices(words, k=BODY // 5))[: BODY - 100]
    await post(port, make_request("/tokenize", {"prompt": text}))


async def ask_logprobs(port: int) -> None:
    """Request many long answers with log-probabilities, not streamed."""
    messages = [{"role": "user", "content": "Go on."}]
    fields = {"n": ANSWERS, "max_tokens": TOKENS, "logprobs": True, "top_logprobs": TOP, "ignore_eos": True}
    await post(port, make_request("/v1/chat/completions", {"messages": messages, **fields}))


async def evict(port: int) -> None:
    """Cache 2,000 prompts, then send one that needs nearly all of their pages."""
    turns = iter(range(STORED))

    async def fill() -> None:
        for number in turns:
            prompt = [1000 + number] * (STORED_PAGES * 16 - 4)
            await post(port, make_request("/v1/completions", ask(prompt, max_tokens=1)))

    await asyncio.gather(*(fill() for _ in range(ASKING)))
    prompt = [7] * ((STORED - 50) * STORED_PAGES * 16)
    await post(port, make_request("/v1/completions", ask(prompt, max_tokens=1)))


async def stream_many(port: int) -> None:
    """Stream many ordinary answers at once."""
    fields = ask([1, 2, 3, 4], max_tokens=STREAM_TOKENS, stream=True)
    await asyncio.gather(*(post(port, make_request("/v1/completions", fields)) for _ in range(STREAMS)))


async def wait(port: int) -> None:
    """Wait without an attack."""
    del port
    await asyncio.sleep(QUIET_S)


ATTACKS: dict[str, Attack] = {
    "nothing": wait,
    "16 MiB of {},": lambda port: send_body(port, b"{},"),
    "16 MiB of [1],": lambda port: send_body(port, b"[1],"),
    "16 MiB of tokens": lambda port: send_body(port, b"1,"),
    "16 MiB of text": send_text,
    f"{ANSWERS} answers x {TOKENS} tokens x top {TOP}": ask_logprobs,
    f"a prompt instead of {STORED} stored ones": evict,
    f"{STREAMS} ordinary streams": stream_many,
}


async def suffer(port: int, name: str) -> dict[str, Any]:
    """Run an attack from its own process, and return the lag of the loop and the pause of another client's stream."""
    victim = Victim(port)
    streaming = asyncio.create_task(victim.stream())
    await asyncio.sleep(1)
    await fetch_json(port, "/bench/lags")
    victim.longest_s, begun = 0.0, time.perf_counter()
    command = ("-m", "benchmarks.loop_lag", "--attack", name, "--port", str(port))
    attacker = await asyncio.create_subprocess_exec(sys.executable, *command)
    assert await attacker.wait() == 0
    seconds, lag = time.perf_counter() - begun, await fetch_json(port, "/bench/lags")
    assert not streaming.done(), streaming.result()
    streaming.cancel()
    await asyncio.wait([streaming])
    return {
        "attack": name,
        "seconds": round(seconds, 1),
        "pause_ms": round(victim.longest_s * 1000, 1),
        "loop_lag": lag,
    }


def measure(folder: Path, name: str) -> dict[str, Any]:
    """Attack a fresh server, and return the figures."""
    with run_host("score", folder) as port:
        found = asyncio.run(suffer(port, name))
    print(json.dumps(found), file=sys.stderr)
    return found


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?", help="a model folder")
    parser.add_argument("--only", help="run only attacks whose names contain this")
    parser.add_argument("--attack", help="run this attack on the server at --port")
    parser.add_argument("--port", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.attack:
        asyncio.run(ATTACKS[options.attack](options.port))
        return
    quiet = statistics.median(measure(options.model, "nothing")["pause_ms"] for _ in range(TIMES))
    names = [name for name in ATTACKS if name != "nothing" and (options.only or "") in name]
    runs = [measure(options.model, name) for name in names]
    runs = [{**run, "grows_by_ms": round(run["pause_ms"] - quiet, 1)} for run in runs]
    found = {
        "quiet_pause_ms": quiet,
        "runs": runs,
        "worst_lag_ms": max(run["loop_lag"]["worst_ms"] for run in runs),
        "worst_growth_ms": max(run["grows_by_ms"] for run in runs),
        "goal_ms": GOAL_MS,
        **describe_run(
            ["benchmarks.loop_lag", options.model.name], ["fastapi", "uvicorn", "h11", "tokenizers", "msgspec"]
        ),
    }
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
