"""The limits on requests per minute and at the same time, at exactly their values, with a clock that stands still."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from parallax_core.server import rate_limit
from parallax_core.server.options import ServerOptions
from parallax_core.server.rate_limit import RateLimit


@dataclass
class Gate:
    """An application whose requests run until they are let go, behind the limits."""

    options: ServerOptions
    now: float = 1000.0
    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self.is_open.set()
        self.limit = RateLimit(self.answer, self.options, lambda: self.now)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.is_open.wait()
        if self.error is not None:
            raise self.error
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ask(self, client: str = "a", method: str = "POST", path: str = "/v1/completions") -> tuple[int, str]:
        """Return the status of a request, and the seconds after which a client should try again."""
        scope = {"type": "http", "method": method, "path": path, "headers": [], "client": (client, 1)}
        sent: list[Any] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await self.limit(scope, NotImplemented, send)
        headers = dict(sent[0]["headers"])
        return sent[0]["status"], headers.get(b"retry-after", b"").decode()


PASSED = (200, "")


async def test_as_many_a_minute_pass_and_the_next_when_there_is_a_token_again() -> None:
    gate = Gate(ServerOptions(max_per_minute=3))
    assert [await gate.ask() for _ in range(3)] == [PASSED] * 3
    assert await gate.ask() == (429, "20")
    gate.now += 19.5
    assert await gate.ask() == (429, "1"), "a refusal takes nothing"
    gate.now += 0.5
    assert [await gate.ask() for _ in range(2)] == [PASSED, (429, "20")]


async def test_who_was_away_for_long_has_no_more_than_a_minute_of_requests() -> None:
    gate = Gate(ServerOptions(max_per_minute=2))
    await gate.ask()
    gate.now += 3600
    assert [await gate.ask() for _ in range(3)] == [PASSED, PASSED, (429, "30")]


async def test_clients_have_limits_of_their_own() -> None:
    gate = Gate(ServerOptions(max_per_minute=1))
    assert [await gate.ask(client) for client in ("a", "b", "a")] == [PASSED, PASSED, (429, "60")]


async def test_client_that_was_seen_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "MOST_CALLERS", 2)
    gate = Gate(ServerOptions(max_per_minute=1))
    assert [await gate.ask(client) for client in ("a", "b", "a", "c")] == [PASSED, PASSED, (429, "60"), PASSED]
    assert [await gate.ask(client) for client in ("a", "b")] == [(429, "60"), PASSED]


@pytest.mark.parametrize("error", [None, OSError("gone")])
async def test_only_so_many_run_at_once_and_each_end_makes_room(error: Exception | None) -> None:
    gate = Gate(ServerOptions(max_concurrent=2), error=error)
    gate.is_open.clear()
    running = [asyncio.create_task(gate.ask()) for _ in range(2)]
    await asyncio.sleep(0)
    assert [await gate.ask() for _ in range(2)] == [(429, "1")] * 2
    other = asyncio.create_task(gate.ask("b"))
    gate.is_open.set()
    ended = await asyncio.gather(*running, other, return_exceptions=True)
    assert ended == [error or PASSED] * 3
    gate.error = None
    assert [await gate.ask() for _ in range(3)] == [PASSED] * 3


async def test_end_of_one_makes_room_for_one() -> None:
    gate = Gate(ServerOptions(max_concurrent=2))
    asked, doors = [], [asyncio.Event() for _ in range(3)]
    for gate.is_open in doors[:2]:
        asked.append(asyncio.create_task(gate.ask()))
        await asyncio.sleep(0)
    doors[0].set()
    assert await asked[0] == PASSED
    gate.is_open = doors[2]
    asked.append(asyncio.create_task(gate.ask()))
    await asyncio.sleep(0)
    assert await gate.ask() == (429, "1")
    for door in doors:
        door.set()
    assert await asyncio.gather(*asked) == [PASSED] * 3


async def test_request_that_is_refused_since_others_run_takes_no_token() -> None:
    gate = Gate(ServerOptions(max_concurrent=1, max_per_minute=2))
    gate.is_open.clear()
    first = asyncio.create_task(gate.ask())
    await asyncio.sleep(0)
    assert await gate.ask() == (429, "1")
    gate.is_open.set()
    assert await first == PASSED
    assert [await gate.ask() for _ in range(2)] == [PASSED, (429, "30")]


async def test_reading_kept_responses_counts_apart_and_at_the_same_time_only() -> None:
    gate = Gate(ServerOptions(max_concurrent=1, max_per_minute=1))
    assert await gate.ask() == PASSED
    assert [await gate.ask(method="GET", path="/v1/responses/x") for _ in range(3)] == [PASSED] * 3
    gate.is_open.clear()
    first = asyncio.create_task(gate.ask(method="GET", path="/v1/responses/x"))
    await asyncio.sleep(0)
    assert await gate.ask(method="GET", path="/v1/responses/y") == (429, "1")
    gate.is_open.set()
    assert await first == PASSED


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("DELETE", "/v1/responses/x"), ("HEAD", "/")])
async def test_other_requests_are_not_counted(method: str, path: str) -> None:
    gate = Gate(ServerOptions(max_concurrent=1, max_per_minute=1))
    gate.is_open.clear()
    asked = [asyncio.create_task(gate.ask(method=method, path=path)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.is_open.set()
    assert await asyncio.gather(*asked) == [PASSED] * 3
    assert await gate.ask() == PASSED
