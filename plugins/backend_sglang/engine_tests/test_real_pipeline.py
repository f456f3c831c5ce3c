"""``parallax serve --backend sglang --layers 0-15,15-30``: two stages on SGLang, each in a process of its own."""

from __future__ import annotations

import psutil
import pytest

from tests.support.real_server import RealPipeline, RealServer, check_gone

pytestmark = pytest.mark.timeout(900)


class TestSglang(RealPipeline):
    backend, engine = "sglang", "SGLang"
    options = ("context_length=512", "threads=1")

    def test_answer_is_the_same_after_the_process_of_sglang_was_killed(self, server: RealServer) -> None:
        before = server.continue_text(temperature=0)
        [child] = psutil.Process(server.replica()["stages"][1]["pid"]).children()
        child.kill()
        assert server.continue_text(temperature=0) == before
        check_gone([child])
