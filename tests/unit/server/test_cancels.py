"""Clients that leave at random moments, under load; nothing they held stays behind."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from tests.unit.server.letters import answer
from tests.unit.server.listening import Listening, request, until
from tests.unit.server.test_connection import content_of

TIMES, WORKERS = 240, 12


async def leave(server: Listening, draw: random.Random) -> None:
    """Ask for something, and go at any moment."""
    client = await server.connect()
    fields: dict[str, Any] = {
        "max_tokens": draw.choice([1, 8, 60]),
        "stream": draw.random() < 0.7,
        "n": draw.choice([1, 1, 3]),
        "seed": draw.randrange(9),
        "temperature": draw.choice([0, 1]),
    }
    data = request(content=draw.choice(["hello there", "hello you", "a fox "]) * draw.randrange(1, 4), **fields)
    client.send(data if draw.random() < 0.9 else data[: draw.randrange(len(data))])
    await asyncio.sleep(draw.uniform(0, 0.05))
    await client.close()


async def stay(server: Listening) -> None:
    """Read an answer to its end."""
    client = await server.connect()
    client.send(request(max_tokens=6))
    status, _, body = await client.read()
    assert (status, content_of(body)) == (200, answer("hello", 6))
    await client.close()


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    draw = random.Random(3)
    async with Listening() as server:
        engine = server.site.engine
        server.site.stage.before_step = lambda batch: time.sleep(0.001)
        assert await server.answers()
        await until(lambda: server.num_connections == 0)
        usual = len(asyncio.all_tasks())
        left = iter(range(TIMES))

        async def work() -> None:
            for turn in left:
                await (stay(server) if turn % 10 == 0 else leave(server, draw))

        await asyncio.gather(*(work() for _ in range(WORKERS)))
        await until(lambda: server.num_connections == 0)
        await until(lambda: len(asyncio.all_tasks()) <= usual)
        await until(lambda: all(stats.running == stats.waiting == 0 for stats in engine.stats()))
        engine.check()
        engine.drop_stored()
        assert all(pool.used == 0 for stats in engine.stats() for pool in stats.pools)
        pools = [memory.pool for memory in server.site.stage.layers.memories]
        await until(lambda: all(pool.num_free == pool.info.num_pages for pool in pools))
        assert await server.answers()
