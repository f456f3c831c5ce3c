from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, error_of
from tests.unit.server.listening import Listening, until

BODY: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 390}
KEYS = ServerOptions(keys=ApiKeys({"one": "user", "two": "user"}))


class Held:
    """A server whose stage stands still after a few steps until it is released."""

    def __init__(self) -> None:
        self.listening = Listening(KEYS)
        self.running = self.listening.site.service.running
        self._go, self._num_steps = threading.Event(), 0
        self.listening.site.stage.before_step = self._hold

    def _hold(self, batch: object) -> None:
        self._num_steps += 1
        if self._num_steps == 8:
            assert self._go.wait(30)

    def release(self) -> None:
        self._go.set()

    def client(self, key: str) -> openai.AsyncOpenAI:
        url = f"http://127.0.0.1:{self.listening.port}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0)


@asynccontextmanager
async def held_server() -> AsyncIterator[tuple[Held, openai.AsyncOpenAI, openai.AsyncOpenAI]]:
    """Yield the server and the clients of two keys."""
    held = Held()
    async with held.listening, held.client("one") as one, held.client("two") as two:
        try:
            yield held, one, two
        finally:
            held.release()


async def stop(client: openai.AsyncOpenAI, name: str) -> object:
    return await client.post("/stop_request", body={"id": name}, cast_to=object)


@pytest.mark.parametrize("n", [1, 2])
def test_stream_ends_where_it_is(n: int) -> None:
    async def run() -> None:
        async with held_server() as (held, one, two):
            stream = await one.chat.completions.create(**BODY, n=n, stream=True, stream_options={"include_usage": True})
            first = await anext(stream)
            with pytest.raises(openai.NotFoundError):
                await stop(two, first.id)
            assert await stop(one, first.id) == {"id": first.id, "stopped": True}
            held.release()
            chunks = [chunk async for chunk in stream]
            reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
            assert reasons == ["stop"] * n
            usage = chunks[-1].usage
            assert usage is not None
            assert 0 < usage.completion_tokens < 20 * n
            assert usage.prompt_tokens == 5
            await until(lambda: not held.running)
            with pytest.raises(openai.NotFoundError):
                await stop(one, first.id)

    asyncio.run(run())


def test_whole_answer_is_stopped_by_the_id_of_its_request() -> None:
    async def run() -> None:
        async with held_server() as (held, one, two):
            headers = {"X-Request-Id": "mine"}
            asking = asyncio.create_task(one.chat.completions.create(**BODY, extra_headers=headers))
            await until(lambda: held.running)
            with pytest.raises(openai.NotFoundError):
                await stop(two, "mine")
            await stop(one, "mine")
            held.release()
            answer = await asking
            [choice] = answer.choices
            assert choice.finish_reason == "stop"
            assert len(choice.message.content) == answer.usage.completion_tokens < 20

    asyncio.run(run())


def test_unknown_id_is_a_404(site: Site) -> None:
    error = error_of(site.post("/v1/stop_request", id="nothing"), 404)
    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    "body", [{}, {"id": ""}, {"id": 5}, {"id": "x" * 257}, {"id": "x" * 5000}, {"id": "x", "y": 1}]
)
def test_wrong_body_is_refused(site: Site, body: dict[str, Any]) -> None:
    assert error_of(site.post("/v1/stop_request", **body))["param"] in {"id", "y", None}
