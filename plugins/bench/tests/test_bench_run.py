"""A run against a real server on loopback, and what is reported of it."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from parallax_bench.arrival import make_gaps
from parallax_bench.cli import app
from parallax_bench.client import Target, run_tasks
from parallax_bench.dataset import Sizes, make_random, read_file
from parallax_bench.summary import parse_limits, percentile, summarize
from parallax_bench.task import Outcome, Task
from parallax_core.api import ParallaxError
from tests.unit.server.letters import Site


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Serve the toy on a port of its own."""
    site = Site()

    async def run() -> None:
        await site.engine.start()
        await server.serve()
        await site.engine.stop()

    server = uvicorn.Server(uvicorn.Config(site.app, port=0, log_config=None))
    thread = Thread(target=lambda: asyncio.run(run()))
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def bench(*args: str) -> Any:
    return CliRunner().invoke(app, ["serve", *args])


def test_run_reports_every_request(url: str, tmp_path: Path) -> None:
    out, page = tmp_path / "run.json", tmp_path / "run.html"
    sizes = ["--num-prompts", "12", "--input-len", "5", "--output-len", "6", "--concurrency", "3"]
    ran = bench("--url", url, *sizes, "--slo", "ttft=60000", "--out", str(out), "--html", str(page))
    assert ran.exit_code == 0, ran.output
    found = json.loads(out.read_text())
    summary = found["summary"]
    assert (summary["requests"], summary["failed"], summary["output_tokens"]) == (12, 0, 72)
    assert summary["goodput_per_s"] == pytest.approx(summary["requests_per_s"])
    assert len(found["requests"]) == 12
    assert all(each["sent"] <= each["first"] <= each["last"] for each in found["requests"])
    assert sum(len(each["gaps"]) for each in found["requests"]) == 12 * 5
    assert found["settings"]["output_len"] == 6
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "requests_per_s" in text


def test_shared_beginnings_are_found_in_the_cache(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    sizes = ["--num-prompts", "4", "--prefix-len", "8", "--input-len", "2", "--output-len", "2"]
    assert bench("--url", url, "--dataset", "shared-prefix", *sizes, "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text())["summary"]["cached_tokens"] > 0


def test_file_may_hold_prompts_and_conversations(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "abc"}\n\n{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}\n')
    assert [task.body["max_tokens"] for task in read_file(path, 3, 9)] == [9, 3, 9]
    ran = bench("--url", url, "--dataset", f"file:{path}", "--num-prompts", "4", "--output-len", "4")
    assert ran.exit_code == 0, ran.output


async def test_errors_are_counted_by_what_they_are(url: str) -> None:
    bad = Task(route="/v1/completions", body={"prompt": "a", "max_tokens": -1})
    [outcome] = await run_tasks(Target(url=url, model="toy"), [bad], [0.0], 0, lambda _: None)
    summary = summarize([outcome], {})
    assert (summary.failed, summary.output_tokens) == (1, 0)
    assert "max_tokens" in next(iter(summary.errors))


def test_wrong_use_is_said_plainly(tmp_path: Path) -> None:
    for args in (["--dataset", "nothing"], ["--slo", "speed=1"], ["--dataset", f"file:{tmp_path / 'missing'}"]):
        assert isinstance(bench(*args).exception, ParallaxError), args
    assert isinstance(bench("--url", "http://127.0.0.1:9").exception, ParallaxError)
    path = tmp_path / "bad.jsonl"
    for text in ("{", "[]", "{}", '{"prompt": "a", "messages": []}', ""):
        path.write_text(text)
        with pytest.raises(ParallaxError):
            read_file(path, 1, 1)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_asked_for(burstiness: float) -> None:
    gaps = list(make_gaps(20_000, 5.0, burstiness, 1))
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    assert list(make_gaps(3, math.inf, 1.0, 1)) == [0.0] * 3


def test_requests_are_the_same_for_the_same_seed() -> None:
    sizes = Sizes(input_len=10, output_len=20, spread=0.5, prefix_len=4, groups=2)
    tasks = make_random(40, sizes, 3)
    assert tasks == make_random(40, sizes, 3) != make_random(40, sizes, 4)
    assert len({" ".join(task.body["prompt"].split()[:4]) for task in tasks}) == 2
    assert {10 <= task.body["max_tokens"] <= 30 for task in tasks} == {True}
    assert len({task.body["max_tokens"] for task in tasks}) > 5


def test_percentiles_are_those_of_the_statistics_module() -> None:
    values = sorted(random.Random(0).random() for _ in range(101))
    assert percentile(values, 50) == statistics.median(values)
    assert percentile(values, 90) == pytest.approx(statistics.quantiles(values, n=10, method="inclusive")[-1])


def test_goodput_counts_those_that_met_every_limit() -> None:
    fast = Outcome(sent=0, first=0.1, last=1.0, output_tokens=10)
    slow = Outcome(sent=0, first=0.9, last=1.0, output_tokens=10)
    assert summarize([fast, slow], parse_limits("ttft=500,e2e=2000")).goodput_per_s == pytest.approx(1.0)
    assert summarize([fast, slow], {}).goodput_per_s is None
