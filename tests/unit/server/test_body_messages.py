"""What happens to a request before an engine hears of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from parallax_core.engine.limits import Limits
from parallax_core.node.pipeline.options import PipelineOptions
from parallax_core.server.body_messages import BodyRequest, BodyResult
from parallax_core.server.body_reader import BodyReader
from tests.support.local_reader import LocalReader
from tests.unit.server.dialects import BODIES
from tests.unit.server.letters import Letters, Site, error_of
from tests.unit.server.listening import Listening, request, until


class SlowReader(LocalReader):
    """Takes its time over each body."""

    def __init__(self, seconds: float) -> None:
        super().__init__(BodyReader(Letters(), "toy", BODIES))  # type: ignore[arg-type]
        self._seconds = seconds
        self.asked = self.cancelled = 0

    async def read(self, ask: BodyRequest) -> BodyResult:
        self.asked += 1
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return await super().read(ask)


def test_time_that_reading_takes_counts_towards_the_timeout() -> None:
    steps: list[Any] = []
    with Site(reader=SlowReader(0.3)) as site:
        site.stage.before_step = steps.append
        error = error_of(site.ask(max_tokens=5, timeout=0.2), 408)
        assert "0.2 seconds" in error["message"]
        assert not steps
        assert site.ask(max_tokens=5, timeout=30).status_code == 200


def test_request_that_would_be_refused_anyway_is_not_even_read() -> None:
    reader = SlowReader(0)
    with Site(reader=reader, pipeline=PipelineOptions(limits=Limits(max_running=1, max_waiting=0))) as site:
        with site.full():
            assert error_of(site.ask(), 429)["code"] == "overloaded"
            assert error_of(site.complete(), 429)["code"] == "overloaded"
        site.router.drain(0)
        error_of(site.ask(), 503)
        assert reader.asked == 1
        assert site.post("/tokenize", prompt="a").status_code == 200  # for which no engine is needed


async def test_client_that_leaves_while_its_request_waits_to_be_read_is_forgotten() -> None:
    reader = SlowReader(20)
    async with Listening(reader=reader) as server:
        for stream in (False, True):
            client = await server.connect()
            client.send(request(stream=stream))
            await until(lambda: reader.asked > reader.cancelled)
            await client.close()
            await until(lambda: reader.asked == reader.cancelled)
        assert reader.cancelled == 2


def test_many_prompts_are_submitted_all_or_none() -> None:
    with Site(pipeline=PipelineOptions(limits=Limits(max_running=1, max_waiting=5))) as site:
        site.stage.before_step = lambda _: time.sleep(0.01)
        error_of(site.complete(["a" * 60] * 99, max_tokens=3), 429)
        assert site.complete("a", max_tokens=3).status_code == 200
        [stats] = site.engine.stats()
        assert stats.running == stats.waiting == 0
