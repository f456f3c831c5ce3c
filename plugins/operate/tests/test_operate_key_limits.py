"""The limits of single keys hold for their clients, of whatever dialect, and for sessions that they have opened."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Scope

from parallax_core.server.api_keys import ApiKeys, KeyFile, digest_key
from parallax_core.server.options import ServerOptions
from parallax_operate.key_file import KeyLimits, limit_key, name_key
from parallax_operate.key_limits import KeyLimiting, LimitTable, limit_tokens
from tests.unit.server.letters import Site, error_of

ONE, OTHER = "sk-" + "a" * 40, "sk-" + "b" * 40
ID, SESSION = b"key:" + digest_key(ONE), b"caller:0:key " + digest_key(ONE).hex().encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{ONE} admin\n{OTHER}\n")
    path.chmod(0o600)
    limit_key(path, name_key(ONE), KeyLimits(max_concurrent=1, max_per_minute=3, max_output_tokens=40))
    return path


@pytest.fixture
def site(path: Path) -> Iterator[Site]:
    with Site(options=ServerOptions(keys=ApiKeys(file=KeyFile(path)))) as site:
        yield site


def complete(site: Site, key: str, **fields: Any) -> Any:
    headers = {"Authorization": f"Bearer {key}"}
    return site.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4, **fields}, headers=headers)


def test_key_is_limited_and_another_is_not(site: Site) -> None:
    assert "a client may have 40 running" in error_of(complete(site, ONE, max_tokens=41), 400)["message"]
    assert [complete(site, ONE).status_code for _ in range(2)] == [200, 200]
    refused = complete(site, ONE)
    assert refused.headers["Retry-After"] == "20"
    assert "your key may send 3 requests a minute" in error_of(refused, 429)["message"]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert [complete(site, OTHER, max_tokens=41).status_code for _ in range(5)] == [200] * 5
    assert site.client.get("/v1/models", headers={"Authorization": f"Bearer {ONE}"}).status_code == 200


def test_limits_of_clients_without_a_key_of_the_file_are_the_servers(path: Path) -> None:
    table = LimitTable(path)
    most = limit_tokens(table, lambda _: 30)
    assert table.find(ID) == table.find(SESSION)
    assert table.find(ID)[1].max_output_tokens == 40
    assert (most(ID), most(b"key:" + digest_key(OTHER)), most(b"caller:0:operator")) == (30, 30, 30)
    assert limit_tokens(table, lambda _: 0)(SESSION) == 40
    assert limit_tokens(table, lambda _: 0)(b"address:127.0.0.1") == 0


def test_changed_limits_count_within_a_second(path: Path) -> None:
    now = 0.0
    table = LimitTable(path, lambda: now)
    assert table.find(ID)[1].max_concurrent == 1
    limit_key(path, name_key(ONE), KeyLimits(max_concurrent=7))
    os.utime(path, (1, 1))
    assert table.find(ID)[1].max_concurrent == 1
    now = 1.0
    assert table.find(ID)[1].max_concurrent == 7
    path.unlink()
    now = 2.0
    assert table.find(ID)[1].max_concurrent == 7


async def test_key_and_its_sessions_count_together(path: Path) -> None:
    gate, seen = asyncio.Event(), list[str]()

    async def answer(scope: Scope, _: Any, __: Any) -> None:
        seen.append(scope["path"])
        await gate.wait()

    def identify(scope: Scope) -> bytes:
        found: bytes = scope["client"]
        return found

    now = 0.0
    app = KeyLimiting(answer, LimitTable(path), identify, lambda: now)

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def ask(name: str, client: bytes, method: str = "POST") -> list[Message]:
        sent = list[Message]()

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": method, "path": name, "client": client, "headers": []}
        await app(scope, receive, send)
        return sent

    first = asyncio.create_task(ask("first", ID))
    await asyncio.sleep(0)
    refused = await ask("second", SESSION)
    assert refused[0]["status"] == 429
    others = [asyncio.create_task(ask(f"other {number}", b"key:" + digest_key(OTHER))) for number in range(3)]
    looks = asyncio.create_task(ask("look", ID, "GET"))
    await asyncio.sleep(0)
    assert seen == ["first", "other 0", "other 1", "other 2", "look"]
    gate.set()
    await asyncio.gather(first, looks, *others)
    assert [len(await ask(f"{number}", SESSION)) for number in range(3)] == [0, 0, 2]
    now = 20.0
    assert await ask("later", ID) == []
