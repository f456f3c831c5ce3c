"""Answers that are collected, to be sent whole, and what they may take of memory."""

from __future__ import annotations

from typing import Any

import pytest

from parallax_core.node.pipeline.unread import SHARE, UnreadOutput
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site, error_of
from tests.unit.server.listening import Listening, request, until
from tests.unit.server.test_connection import is_idle, shrink

WIDE: dict[str, Any] = {"n": 8, "max_tokens": 40, "logprobs": True, "top_logprobs": 20}


@pytest.mark.parametrize("batch", [False, True])
def test_answer_that_is_too_large_to_be_sent_whole_is_a_400(batch: bool) -> None:
    with Site(backlog=UnreadOutput(SHARE * 2**18)) as site:
        fields = {"n": 4, "max_tokens": 40, "logprobs": 20}
        answer = site.complete(["a", "b", "c"], **fields) if batch else site.ask(**WIDE)
        error = error_of(answer, 400)
        assert "too large to be sent whole" in error["message"]
        assert (error["param"], "'stream': true" in error["message"]) == ("stream", True)
        assert site.backlog.num_bytes == 0
        [stats] = site.engine.stats()
        assert stats.running == stats.waiting == 0
        assert stats.output_tokens < 480
        assert site.ask(**{**WIDE, "stream": True}).text.endswith("data: [DONE]\n\n")


def test_answer_that_was_sent_waits_no_more() -> None:
    with Site() as site:
        assert site.ask(**WIDE).status_code == 200
        assert site.complete(["a", "b"], max_tokens=5).status_code == 200
        error_of(site.ask(temperature=9), 400)
        assert site.backlog.num_bytes == 0


async def test_whole_answer_waits_until_its_client_has_taken_it() -> None:
    async with Listening() as server:
        backlog = server.site.backlog
        client = await server.connect(receive_buffer=2048)
        await shrink(server)
        client.send(request(**WIDE))
        await until(lambda: server.site.engine.stats()[0].output_tokens == 8 * 40)
        await until(lambda: is_idle(server))
        assert backlog.num_bytes > 2**19
        status, _, rest = await client.read()
        body = bytearray(rest)
        while not body.endswith(b"0\r\n\r\n"):
            body += await client.reader.read(2**14)
        assert status == 200
        await until(lambda: backlog.num_bytes == 0)


async def test_whole_answer_that_is_never_taken_is_let_go_of() -> None:
    async with Listening(ServerOptions(request_s=0.4)) as server:
        client = await server.connect(receive_buffer=2048)
        await shrink(server)
        client.send(request(**WIDE))
        await until(lambda: server.site.backlog.num_bytes > 2**19)
        await until(lambda: server.site.backlog.num_bytes == 0)
        await until(lambda: server.num_connections == 0)
        assert await server.answers()
        await client.close()
