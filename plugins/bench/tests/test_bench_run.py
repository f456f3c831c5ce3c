"""A run against a real server on loopback, and what is reported of it."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from parallax_bench.arrival import make_gaps
from parallax_bench.cli import app
from parallax_bench.client import Target, send_requests
from parallax_bench.dataset import Sizes, make_random
from parallax_bench.load import Wanted, load_dataset
from parallax_bench.request import BenchRequest, BenchResult
from parallax_bench.summary import parse_limits, percentile, summarize
from parallax_core.api import ParallaxError
from parallax_core.server.api_keys import ApiKeys
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import Site


@contextmanager
def serve(site: Site) -> Iterator[str]:
    """Serve the toy on a port of its own."""

    async def run() -> None:
        await site.router.start()
        await server.serve()
        await site.router.stop()

    server = uvicorn.Server(uvicorn.Config(site.app, port=0, log_config=None))
    thread = Thread(target=lambda: asyncio.run(run()))
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(Site()) as url:
        yield url


def bench(*args: str) -> Any:
    return CliRunner().invoke(app, ["serve", *args])


def test_run_reports_every_request(url: str, tmp_path: Path) -> None:
    out, page = tmp_path / "run.json", tmp_path / "run.html"
    sizes = ["--num-prompts", "12", "--input-len", "5", "--output-len", "6", "--concurrency", "3"]
    ran = bench("--url", url, *sizes, "--slo", "ttft=60000,itl=60000", "--out", str(out), "--html", str(page))
    assert ran.exit_code == 0, ran.output
    found = json.loads(out.read_text())
    summary = found["summary"]
    assert (summary["requests"], summary["failed"], summary["output_tokens"]) == (12, 0, 72)
    assert summary["goodput_per_s"] == pytest.approx(summary["requests_per_s"])
    assert summary["within"] == {"ttft": 1.0, "itl": 1.0}
    assert "100.0% within the limit of itl" in ran.output
    assert {line.split()[0] for line in ran.output.splitlines() if line.endswith(" ms")} == {"ttft", "itl", "e2e"}
    assert len(found["requests"]) == 12
    assert all(each["sent"] <= each["first"] <= each["last"] for each in found["requests"])
    assert sum(len(each["gaps"]) for each in found["requests"]) == 12 * 5
    assert (found["settings"]["output_len"], found["settings"]["model"]) == (6, "toy")
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "requests_per_s" in text


def test_key_that_does_not_fit_is_told_in_the_words_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Site(ServerOptions(keys=ApiKeys({"u": "user", "m": "metrics"})))) as url:
        for key, words in (("wrong", "no valid API key"), ("m", "needs an API key of the role 'user'")):
            monkeypatch.setenv("PARALLAX_API_KEY", key)
            with pytest.raises(ParallaxError, match=words) as caught:
                CliRunner().invoke(app, ["serve", "--url", url, "--num-prompts", "1"], catch_exceptions=False)
            assert "PARALLAX_API_KEY" in caught.value.hint
        monkeypatch.setenv("PARALLAX_API_KEY", "u")
        assert bench("--url", url, "--num-prompts", "1", "--input-len", "5", "--output-len", "2").exit_code == 0


def test_shared_beginnings_are_found_in_the_cache(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    sizes = ["--num-prompts", "4", "--prefix-len", "8", "--input-len", "2", "--output-len", "2"]
    assert bench("--url", url, "--dataset", "shared-prefix", *sizes, "--out", str(out)).exit_code == 0
    assert json.loads(out.read_text())["summary"]["cached_tokens"] > 0


def test_file_may_hold_prompts_and_conversations(url: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"prompt": "abc"}\n\n{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}\n')
    requests = load_dataset(f"file:{path}", Wanted(num=3, output_len=9))
    assert [request.body["max_tokens"] for request in requests] == [9, 3, 9]
    ran = bench("--url", url, "--dataset", f"file:{path}", "--num-prompts", "4", "--output-len", "4")
    assert ran.exit_code == 0, ran.output


def test_trace_is_played_and_plotted(url: str, tmp_path: Path) -> None:
    path, out, svg = tmp_path / "trace.csv", tmp_path / "run.json", tmp_path / "run.svg"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,30,2\n1,20,3\n3,10,4\n")
    options = ["--speed", "100", "--length-scale", "0.1", "--output-len", "5", "--out", str(out), "--svg", str(svg)]
    ran = bench("--url", url, "--dataset", f"trace:{path}", *options)
    assert ran.exit_code == 0, ran.output
    found = json.loads(out.read_text())
    assert (found["summary"]["requests"], found["summary"]["output_tokens"]) == (2, 10), "one is a warm-up"
    assert svg.read_text().startswith("<?xml")


async def test_errors_are_counted_by_what_they_are(url: str) -> None:
    bad = BenchRequest(route="/v1/completions", body={"prompt": "a", "max_tokens": -1})
    [result] = await send_requests(Target(url=url, model="toy"), [bad], [0.0], 0, lambda _: None)
    summary = summarize([result], {})
    assert (summary.failed, summary.output_tokens) == (1, 0)
    assert "max_tokens" in next(iter(summary.errors))


def test_wrong_use_is_said_plainly(tmp_path: Path) -> None:
    for args in (["--dataset", "nothing"], ["--slo", "speed=1"], ["--dataset", f"file:{tmp_path / 'missing'}"]):
        assert isinstance(bench(*args).exception, ParallaxError), args
    assert isinstance(bench("--url", "http://127.0.0.1:9").exception, ParallaxError)
    for option in ("--out", "--html", "--svg"):
        assert "cannot be written" in str(bench("--url", "http://127.0.0.1:9", option, str(tmp_path)).exception)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_asked_for(burstiness: float) -> None:
    gaps = list(make_gaps(20_000, 5.0, burstiness, 1))
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(burstiness**-0.5, rel=0.05)
    assert list(make_gaps(3, math.inf, 1.0, 1)) == [0.0] * 3


def test_requests_are_the_same_for_the_same_seed() -> None:
    sizes = Sizes(input_len=10, output_len=20, spread=0.5, prefix_len=4, groups=2)
    requests = make_random(40, sizes, 3)
    assert requests == make_random(40, sizes, 3) != make_random(40, sizes, 4)
    assert len({" ".join(request.body["prompt"].split()[:4]) for request in requests}) == 2
    assert {10 <= request.body["max_tokens"] <= 30 for request in requests} == {True}
    assert len({request.body["max_tokens"] for request in requests}) > 5


def test_percentiles_are_those_of_the_statistics_module() -> None:
    values = sorted(random.Random(0).random() for _ in range(101))
    assert percentile(values, 50) == statistics.median(values)
    assert percentile(values, 90) == pytest.approx(statistics.quantiles(values, n=10, method="inclusive")[-1])


def test_goodput_counts_those_that_met_every_limit() -> None:
    fast = BenchResult(sent=0, first=0.1, last=1.0, output_tokens=10)
    slow = BenchResult(sent=0, first=0.9, last=1.0, output_tokens=10)
    assert summarize([fast, slow], parse_limits("ttft=500,e2e=2000")).goodput_per_s == pytest.approx(1.0)
    assert summarize([fast, slow], {}).goodput_per_s is None
    # By hand: over 4 s, "late" takes 2.5 s in all, "even" (2.0 - 0.5) / 3 = 0.5 s per further token, "single" has none.
    late = BenchResult(sent=1.5, first=1.6, last=4.0, output_tokens=25, gaps=[0.1, 0.3, 0.2])
    even = BenchResult(sent=0.0, first=0.5, last=2.0, output_tokens=4, gaps=[0.5, 0.5, 0.5])
    single = BenchResult(sent=0.5, first=0.9, last=0.9, output_tokens=1)
    broken = BenchResult(sent=0.2, first=0.3, last=0.4, output_tokens=9, error="500")
    runs = [late, even, single, broken]
    for text, good in {
        "tpot=500": 3,
        "tpot=499": 2,
        "e2e=2500": 3,
        "e2e=2499": 2,
        "ttft=400": 2,
        "ttft=399, e2e=9999": 1,
        "ttft=99.9": 0,
        "itl=300": 2,
        "itl=200": 1,
    }.items():
        assert summarize(runs, parse_limits(text)).goodput_per_s == pytest.approx(good / 4), text
    assert summarize(runs, {}).requests_per_s == pytest.approx(3 / 4)
    assert summarize(runs, parse_limits("ttft=400,itl=300")).within == {"ttft": 0.5, "itl": 0.5}, "a failed one counts"


@pytest.mark.parametrize(
    ("text", "error", "tokens"),
    [
        ('data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n', "", 0),
        (': hello\nevent: message\ndata:{"choices": [{"text": "a"}]}\n\ndata:[DONE]\n\n', "", 0),
        ('data: {"choices": [{"text": "a"}]}\n\n', "the answer ended early", 0),
        ('data: {"error": {"message": "out of luck"}}\n\n', "out of luck", 0),
        ("data: {nonsense\n\n", "JSONDecodeError", 0),
        ('data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 7}}\n\ndata: [DONE]\n\n', "", 7),
    ],
)
async def test_answers_of_any_server_are_read_as_they_are(text: str, error: str, tokens: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + text.encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        request = BenchRequest(route="/v1/completions", body={"prompt": "a"})
        [result] = await send_requests(Target(url=url, model="x"), [request], [0.0], 0, lambda _: None)
    assert error in result.error
    assert bool(error) == bool(result.error)
    assert result.output_tokens == tokens


def test_page_needs_nothing_but_itself(url: str, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    sizes = ["--num-prompts", "2", "--input-len", "3", "--output-len", "2"]
    assert bench("--url", url, *sizes, "--html", str(page)).exit_code == 0
    parser = Sources()
    parser.feed(page.read_text())
    assert parser.closed["svg"] == 2
    assert [each for each in parser.found if not each.startswith("#")] == []


class Sources(HTMLParser):
    """Collects what a page takes from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.closed: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href"}]
        self.found += [tag] if tag in {"script", "link", "iframe", "img"} else []

    def handle_endtag(self, tag: str) -> None:
        self.closed[tag] += 1
