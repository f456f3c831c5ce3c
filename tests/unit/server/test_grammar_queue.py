"""Grammars that are checked in a process of their own: good, bad and slow ones, of one client and of several."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from parallax_core.contracts.grammar import Grammar
from parallax_core.server import grammar_queue
from parallax_core.server.body_messages import BodyRequest, BodyResult, DirectAnswer, ParsedBody, RefusedBody
from parallax_core.server.grammar_queue import GrammarQueue
from parallax_core.server.tokenizer_pool import PoolLimits, TokenizerPool
from parallax_core.server.tokenizer_process import TokenizerProcess
from tests.unit.server.dialects import make_setup
from tests.unit.tinymodel import write_model

GOOD: dict[str, Any] = {"guided_regex": "[ab]{3}"}
NUM_SLOW = 6


def make(client: bytes = b"", **fields: Any) -> BodyRequest:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
    return BodyRequest(kind="chat", body=json.dumps(body).encode(), client=client)


def make_slow(number: int, client: bytes = b"") -> BodyRequest:
    """Return a request with a grammar of its own, which takes far longer to compile than it may."""
    return make(client, guided_json={"title": str(number), "type": "integer", "multipleOf": 3_999_971, "minimum": 0})


@asynccontextmanager
async def running(folder: Path, **limits: int) -> AsyncIterator[TokenizerPool]:
    pool = TokenizerPool(make_setup(folder), PoolLimits(num_processes=1, **limits))
    if not (folder / "tokenizer.json").exists():
        write_model(folder)
    try:
        await pool.start()
        pool.start_others()
        yield pool
    finally:
        await pool.stop()


@asynccontextmanager
async def sending_slow(pool: TokenizerPool, client: bytes) -> AsyncIterator[Sequence[asyncio.Task[BodyResult]]]:
    """Have a client send slow grammars, and wait until one of them is being compiled."""
    tasks = [asyncio.create_task(pool.read(make_slow(number, client))) for number in range(NUM_SLOW)]
    await asyncio.sleep(0)
    await pool.read(make(client))  # the one process has read theirs before
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_bad_grammar_is_refused_by_the_name_of_its_field(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"guided_json": {"not": {}}}, "guided_json", "Unimplemented"),
        ({"guided_json": "{"}, "guided_json", "not valid"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": []}}}},
            "response_format",
            "Unsatisfiable",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "invalid regex"),
        ({"guided_grammar": "start: start"}, "guided_grammar", "no text can match"),
    ]
    async with running(tmp_path) as pool:
        for fields, param, words in cases:
            content = (await pool.read(make(**fields))).content
            assert isinstance(content, RefusedBody), content
            assert (content.kind, content.param) == ("invalid", param)
            assert content.message.startswith(f"'{param}': the ")
            assert words in content.message
        assert isinstance((await pool.read(make(**GOOD))).content, ParsedBody)
        assert isinstance((await pool.read(make(tools=[tool], tool_choice="none"))).content, ParsedBody)


async def test_pool_says_whether_the_tokenizer_takes_grammars(tmp_path: Path) -> None:
    async with running(tmp_path) as pool:
        await pool.read(make(**GOOD))
        assert pool.takes_grammars
    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.normalizer = normalizers.Replace("t", "d")
    tokenizer.save(str(path))
    async with running(tmp_path) as pool:
        async with asyncio.timeout(60):
            while pool.takes_grammars:  # noqa: ASYNC110 -- nobody tells
                await asyncio.sleep(0.01)
        assert isinstance((await pool.read(make(**GOOD))).content, RefusedBody)


async def test_slow_grammars_of_a_client_delay_no_requests_without_one(tmp_path: Path) -> None:
    async with running(tmp_path) as pool, sending_slow(pool, b"slow") as slow:
        assert isinstance((await pool.read(make(b"slow"))).content, ParsedBody)
        assert not any(task.done() for task in slow)
        content = (await slow[0]).content
    assert isinstance(content, RefusedBody)
    assert (content.kind, content.param) == ("invalid", "guided_json")
    assert "more than 0.7 seconds to compile" in content.message


async def test_other_client_waits_for_one_slow_grammar_at_most(tmp_path: Path) -> None:
    async with running(tmp_path) as pool, sending_slow(pool, b"slow") as slow:
        assert isinstance((await pool.read(make(b"quick", **GOOD))).content, ParsedBody)
        assert sum(task.done() for task in slow) <= 1


class QuickProcess(TokenizerProcess):
    """Finds every grammar good, and counts them."""

    def __init__(self) -> None:
        super().__init__(make_setup(""))
        self.num_checked = 0

    async def read(self, ask: BodyRequest, limit_s: float) -> BodyResult:
        del ask, limit_s
        self.num_checked += 1
        return BodyResult(DirectAnswer(b'{"seconds": 0}'))

    async def revive(self) -> None:
        """There is nothing to start."""


def number_grammar(number: int) -> Grammar:
    return Grammar(kind="regex", source=str(number))


async def test_grammar_used_longest_ago_is_forgotten() -> None:
    process = QuickProcess()
    queue = GrammarQueue(process)
    for number in (*range(grammar_queue.MOST_KNOWN), 0, grammar_queue.MOST_KNOWN):
        await queue.check(number_grammar(number), b"")
    assert process.num_checked == grammar_queue.MOST_KNOWN + 1
    await queue.check(number_grammar(0), b"")
    assert process.num_checked == grammar_queue.MOST_KNOWN + 1
    await queue.check(number_grammar(1), b"")
    assert process.num_checked == grammar_queue.MOST_KNOWN + 2


async def test_good_grammar_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_queue, "QUICK_S", math.inf)
    async with running(tmp_path) as pool:
        for number in range(grammar_queue.MOST_KNOWN):
            await pool.read(make(guided_regex=f"a{{{number}}}"))
        await pool.read(make(guided_regex="a{0}"))
        await pool.read(make(**GOOD))
        async with sending_slow(pool, b"slow"):
            for _ in range(3):
                assert isinstance((await pool.read(make(b"slow", **GOOD))).content, ParsedBody)
                await pool.read(make(b"slow", guided_regex="a{0}"))


async def test_client_that_leaves_gives_up_its_place(tmp_path: Path) -> None:
    async with running(tmp_path, max_waiting=NUM_SLOW + 1) as pool:
        async with sending_slow(pool, b"slow") as slow:
            await asyncio.sleep(0)
        assert all(task.cancelled() for task in slow)
        assert isinstance((await pool.read(make(b"slow", **GOOD))).content, ParsedBody)
        await asyncio.gather(*(pool.read(make()) for _ in range(NUM_SLOW + 2)))  # one is read while the others wait
