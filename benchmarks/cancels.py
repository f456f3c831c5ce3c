"""Checks that requests cancelled at random moments release everything they held.

    python -m benchmarks.cancels MODEL_FOLDER --out benchmarks/results/cancels.json

The server runs in its own process. Clients connect, ask for one or several answers, streamed or whole, with prompts
that share prefixes, and leave at a random moment: before the body is complete, while they wait, or in the middle of a
stream, by closing or by resetting the connection. Other clients meanwhile read their answers to the end and check them.
This happens 10,000 times with the toy model, 10,000 times with the toy model under grammars, whose masks are made
beside each step, and 1,000 times with the real model on the MLX backend.

Afterwards the server must hold no request, stream, claim or task. Once the cached prefixes are dropped, every page of
the ledger must be free, and the stage must report the same after one more step. "resident_mib" is the server's memory
before the first cancellation and after every tenth of them; "growth" is measured from one fifth of them (the 2,000th of
10,000) to the last, and the goal is below 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.host import fetch_json, make_request, run_host
from benchmarks.record import describe_run, write_report

TIMES = {"toy": 10_000, "masked": 10_000, "mlx": 1000}
WORKERS = {"toy": 16, "masked": 16, "mlx": 8}
WARM = {"toy": 1500, "masked": 1500, "mlx": 100}
WARM_WORKERS = {"toy": 500, "masked": 500, "mlx": 50}
"""Concurrent clients during a warm-up of `WARM` cancellations, which are not counted: every page is used once, and the
server's memory reaches the size it has when requests pile up on a busy machine."""
READERS = 4
MOST_S = {"toy": 0.5, "masked": 0.5, "mlx": 2.0}
"""The longest time before a client leaves, in seconds."""
GOAL = 0.05
PARTS = 10
SETTLE_S = 5
HELD = ("requests", "streams", "claims", "jobs")
GRAMMARS = ["[a-m ,]{20,200}", "([a-z]{1,9} ){3,40}", "(fox|dragon)( (and|or) (fox|dragon)){0,30}", "[a-z .,?]*"]
"""Regular expressions for the answers of the toy."""
OPENINGS = ["hello there", "hello you", "once upon a time there was a fox, and ", "the fox and the dragon "]
RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing resets the connection."""


class ClientPool:
    """Runs the clients of one server."""

    def __init__(self, kind: str, port: int, times: int) -> None:
        self._kind = kind
        self._port = port
        self._random = random.Random(20)  # noqa: S311 -- to be the same every time, not to be secret
        self._left = times
        self._right: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.answers = 0

    async def run(self) -> dict[str, Any]:
        """Run all clients; return what the server held before, during and after."""
        await asyncio.gather(*(self._read_whole(opening) for opening in OPENINGS))
        before = await self._settle()
        readers = [asyncio.create_task(self._keep_reading(number)) for number in range(READERS)]
        await self._cancel(WARM[self._kind], WARM_WORKERS[self._kind])
        self.outcomes.clear()
        begun, total = time.perf_counter(), self._left
        resident = [await self._weigh()]
        for _ in range(PARTS):
            await self._cancel(total // PARTS, WORKERS[self._kind])
            resident.append(await self._weigh())
        seconds = time.perf_counter() - begun
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        after = await self._settle()
        empty = await fetch_json(self._port, "/bench/empty")
        assert all(reader.cancelled() for reader in readers), "a client that stayed got a wrong answer"
        found = {"cancels": total, "seconds": round(seconds, 1), **self._judge(before, after, empty)}
        return {**found, "resident_mib": resident, "growth": resident[-1] / resident[PARTS // 5] - 1}

    async def _weigh(self) -> float:
        """Return the memory of the server in MiB."""
        state = await fetch_json(self._port, "/bench/state")
        return round(float(state["resident_kib"]) / 1024, 1)

    def _judge(self, before: dict[str, Any], after: dict[str, Any], empty: dict[str, Any]) -> dict[str, Any]:
        held = {name: after[name] for name in HELD}
        assert not any(held.values()), held
        assert after["tasks"] <= before["tasks"], (before, after)
        assert not any(empty["pages_used"]), empty
        assert empty["health"] == "ready"
        return {
            "how_they_ended": dict(self.outcomes),
            "answers_of_those_who_stayed": self.answers,
            "held_after": held,
            "tasks": [before["tasks"], after["tasks"]],
            "pages_used_after": after["pages_used"],
            "of_stored_sequences": after["stored"],
            "pages_used_when_these_are_dropped": empty["pages_used"],
            "steps": empty["steps"],
        }

    async def _settle(self) -> dict[str, Any]:
        """Wait until the server holds no requests, which should take the time of a few steps; return its state."""
        for _ in range(SETTLE_S):
            await asyncio.sleep(1)
            found: dict[str, Any] = await fetch_json(self._port, "/bench/state")
            if not any(found[name] for name in HELD):
                break
        return found

    async def _cancel(self, times: int, workers: int) -> None:
        left = iter(range(times))

        async def work() -> None:
            for _ in left:
                self.outcomes[await self._leave()] += 1

        await asyncio.gather(*(work() for _ in range(workers)))

    async def _leave(self) -> str:
        """Send a request and leave at a random moment; return how far the answer had come."""
        draw, reader, writer = self._random, *await asyncio.open_connection("127.0.0.1", self._port)
        data = make_request("/v1/chat/completions", self._make_fields())
        is_reset = draw.random() < 0.5  # noqa: PLR2004 -- as often as not
        try:
            if draw.random() < 0.1:  # noqa: PLR2004 -- one in ten leaves before the body is whole
                writer.write(data[: draw.randrange(len(data))])
                await asyncio.sleep(draw.uniform(0, 0.01))
                return "before the body was whole"
            writer.write(data)
            seen = await _watch(reader, draw.uniform(0, MOST_S[self._kind]))
            return seen if not is_reset or seen == "at the end" else f"{seen}, by a reset"
        finally:
            if is_reset:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()

    def _make_fields(self) -> dict[str, Any]:
        draw = self._random
        content = draw.choice(OPENINGS) + "".join(draw.choices("abc ", k=draw.randrange(60)))
        return {
            "messages": [{"role": "user", "content": content}],
            "stream": draw.random() < 0.7,  # noqa: PLR2004 -- most are
            "n": draw.choice([1, 1, 1, 1, 1, 3]),
            "max_tokens": draw.choice([1, 8, 40, 150]),
            "seed": draw.randrange(100),
            "temperature": draw.choice([0, 1]),
            **({"guided_regex": draw.choice(GRAMMARS)} if self._kind == "masked" else {"ignore_eos": True}),
        }

    async def _keep_reading(self, number: int) -> None:
        while True:
            await self._read_whole(OPENINGS[number])
            self.answers += 1

    async def _read_whole(self, opening: str) -> None:
        """Read an answer to its end; it is always the same."""
        fields = {"messages": [{"role": "user", "content": opening}], "temperature": 0, "max_tokens": 12}
        if self._kind == "masked":
            fields["guided_regex"] = GRAMMARS[OPENINGS.index(opening)]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(make_request("/v1/chat/completions", fields).replace(b"Host", b"Connection: close\r\nHost"))
        try:
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        if b" 429 " in head.splitlines()[0]:
            await asyncio.sleep(0.05)
            return
        text = json.loads(body)["choices"][0]["message"]["content"]
        assert self._right.setdefault(opening, text) == text


async def _watch(reader: asyncio.StreamReader, seconds: float) -> str:
    """Read for at most ``seconds``, and return how far the answer had come."""
    text = b""
    try:
        async with asyncio.timeout(seconds):
            while piece := await reader.read(2**16):
                text = text[-8:] + piece if text else piece
                if b"[DONE]" in text or (b"\r\n\r\n{" in text):
                    return "at the end"
    except TimeoutError:
        return "in a stream" if text else "while it waited"
    except ConnectionError:
        return "was cut off"
    return "at the end"


def measure(kind: str, folder: Path, times: int) -> dict[str, Any]:
    """Measure one kind of server with ``times`` cancellations, and return the figures."""
    with run_host(kind, folder) as port:
        found = asyncio.run(ClientPool(kind, port, times).run())
    return {"stage": kind, **found, "growth": round(found["growth"], 4), "goal": GOAL}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--kinds", nargs="+", default=list(TIMES), choices=TIMES)
    parser.add_argument("--times", type=int, help="cancellations of each kind")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    runs = [measure(kind, options.model, options.times or TIMES[kind]) for kind in options.kinds]
    found = {"runs": runs, **describe_run(["benchmarks.cancels", options.model.name], ["fastapi", "uvicorn", "h11"])}
    print(json.dumps(found, indent=2))
    write_report(options.out, found)


if __name__ == "__main__":
    main()
