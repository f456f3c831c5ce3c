"""The engine in the worker process, with a child process that speaks the same messages and is not SGLang."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parallax_adapters.engines import EngineAdapters
from parallax_backend_sglang import process
from parallax_backend_sglang.engine import EngineLoad, SglangEngine
from parallax_backend_sglang.frames import LoadEngine
from parallax_backend_sglang.process import ChildProcess
from parallax_core.api import Delta, InvalidRequest, ParallaxError, Request, RequestId, Sampling, Unavailable

FAKE = Path(__file__).with_name("fake_child.py")
BROKEN, SLOW, CRASH = 900, 901, 902
"""Last tokens of a prompt for which the fake child does something else."""


class Reports(list[tuple[int, int | None]]):
    def __call__(self, task: str, done: int, total: int | None, unit: str = "bytes") -> None:
        self.append((done, total))


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CHILD", [str(FAKE)])


def make_engine(architecture: str = "Fake", reports: Reports | None = None, *, adapters: bool = False) -> Any:
    found = EngineAdapters(FAKE.parent, 8) if adapters else None
    load = EngineLoad(LoadEngine(architecture, {}), found, "somewhere", Reports() if reports is None else reports)
    return SglangEngine(load, lambda: ChildProcess(on_cpu=True, threads=1))


def make_request(*prompt: int, **changes: Any) -> Request:
    fields: dict[str, Any] = {
        "id": RequestId("one"),
        "prompt": prompt or (1, 2, 3),
        "max_tokens": 4,
        "sampling": Sampling(temperature=0.0),
    }
    return Request(**{**fields, **changes})


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[SglangEngine]:
    engine = make_engine(**options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def read(engine: SglangEngine, request: Request) -> list[Delta]:
    return [delta async for delta in engine.submit(request)]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except FileNotFoundError:
        return False


def list_folders() -> list[str]:
    return [str(path) for path in Path("/tmp").glob("sglang-*")]  # noqa: S108


async def test_engine_reports_its_start_and_describes_itself() -> None:
    reports = Reports()
    async with running(reports=reports, adapters=True) as engine:
        assert reports == [(0, 2), (1, 2), (2, 2)]
        assert (engine.info.device, engine.info.seed, engine.info.context_length) == ("somewhere", "none", 64)
        assert "adapter" in engine.info.honours
        assert not engine.info.honours & {"repetition_penalty", "min_tokens"}


async def test_answer_ends_with_its_usage() -> None:
    async with running() as engine:
        deltas = await read(engine, make_request())
        assert [token for delta in deltas for token in delta.tokens] == [4, 5, 6, 7]
        finish = deltas[-1].finish
        assert finish is not None
        assert (finish.reason, finish.prompt_tokens, finish.output_tokens, finish.cached_tokens) == ("length", 3, 4, 1)
        assert deltas[0].cached_tokens == 1
        [stats] = engine.stats()
        assert (stats.prompt_tokens, stats.output_tokens, stats.cached_tokens) == (3, 4, 1)
        assert (stats.running, stats.waiting, stats.pools[0].used, stats.pools[0].total) == (1, 2, 3, 4)


async def test_several_answers_are_requests_of_their_own() -> None:
    async with running() as engine:
        deltas = await read(engine, make_request(n=3))
        for index in range(3):
            assert [token for each in deltas if each.index == index for token in each.tokens] == [4, 5, 6, 7]
        assert [delta.finish is not None for delta in deltas].count(True) == 1
        finish = deltas[-1].finish
        assert finish is not None
        assert finish.output_tokens == 12


async def test_error_of_one_answer_ends_the_request_and_no_other() -> None:
    async with running() as engine:
        broken, well = await asyncio.gather(
            read(engine, make_request(BROKEN, n=2)), read(engine, make_request(id=RequestId("two")))
        )
        finish = broken[-1].finish
        assert finish is not None
        assert (finish.reason, finish.message) == ("error", "broken")
        assert well[-1].finish is not None
        assert well[-1].finish.reason == "length"


async def test_closed_stream_stops_its_answers_at_sglang(capsys: pytest.CaptureFixture[str]) -> None:
    async with running() as engine:
        stream = engine.submit(make_request(SLOW, n=2))
        kept = weakref.ref(stream)
        deltas = []
        async for delta in stream:
            deltas.append(delta)
            stream.close()
            stream.close()
        assert len(deltas) <= 2
        await read(engine, make_request(id=RequestId("two")))
        del stream
        gc.collect()
        assert kept() is None, "the engine keeps a stream that is over"
    assert capsys.readouterr().err.count("sglang: stop") == 1


async def test_crash_ends_every_request_with_the_error_and_fails_the_engine() -> None:
    async with running() as engine:
        waiting = asyncio.create_task(read(engine, make_request(SLOW)))
        crashed = await read(engine, make_request(CRASH, id=RequestId("two")))
        for deltas in (await waiting, crashed):
            finish = deltas[-1].finish
            assert finish is not None
            assert finish.reason == "error"
            assert finish.message == "SGLang failed: RuntimeError: the device is on fire"
        assert engine.health().state == "failed"
        assert "on fire" in engine.health().reason
        with pytest.raises(Unavailable, match="failed"):
            engine.submit(make_request())


@pytest.mark.parametrize(
    ("architecture", "message", "hint"),
    [("Refused", "no such family", "try another"), ("Crashes", "ValueError: no memory", "sglang:")],
)
async def test_failed_start_says_why_and_leaves_nothing(architecture: str, message: str, hint: str) -> None:
    engine = make_engine(architecture)
    with pytest.raises(ParallaxError, match=message) as caught:
        await engine.start()
    assert hint in caught.value.hint
    assert engine.health().state == "failed"
    assert message in engine.health().reason
    await engine.stop()


async def test_stop_while_it_starts_ends_the_start() -> None:
    engine = make_engine("Hangs")
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await engine.stop()
    with pytest.raises(ParallaxError):
        await starting
    assert engine.health().state != "ready"


async def test_stop_ends_streams_and_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    engine = make_engine()
    await engine.start()
    stream = engine.submit(make_request(SLOW))
    await engine.stop()
    deltas = [delta async for delta in stream]
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.reason == "aborted"
    assert deltas[-1].finish.message
    _, _, pid, folder = capsys.readouterr().err.splitlines()[0].split()
    assert not is_alive(int(pid))
    assert folder not in list_folders()
    await engine.stop()
    with pytest.raises(Unavailable):
        engine.submit(make_request())


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"adapter": "b"}, "adapter"),
        ({"sampling": Sampling(presence_penalty=2.5)}, "presence_penalty"),
        ({"sampling": Sampling(frequency_penalty=-2.5)}, "frequency_penalty"),
        ({"logprobs": 1, "sampling": Sampling(logit_bias=((1, 2.0),))}, "logprobs"),
        ({"logprobs": 0, "sampling": Sampling(presence_penalty=1.0)}, "logprobs"),
    ],
)
async def test_request_that_sglang_cannot_serve_as_asked_is_refused_by_name(
    changes: dict[str, Any], param: str
) -> None:
    async with running(adapters=True) as engine:
        with pytest.raises(InvalidRequest) as caught:
            engine.submit(make_request(**changes))
        assert caught.value.param == param
        assert (await read(engine, make_request()))[-1].finish is not None


WORKER = """
import sys
from parallax_backend_sglang import process
from parallax_backend_sglang.frames import LoadEngine, pack
process.CHILD = [sys.argv[1]]
child = process.ChildProcess(on_cpu=True, threads=1)
child.link.sendall(pack(LoadEngine("Hangs", {})))
sys.stdin.read()
"""


def test_death_of_the_worker_ends_what_sglang_started_while_it_loads() -> None:
    command = [sys.executable, "-c", WORKER, str(FAKE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        _, _, child, folder = worker.stderr.readline().split()
        lines = iter(worker.stderr.readline, "")
        grandchild = next(line.split()[-1] for line in lines if "started" in line)
        worker.kill()
    deadline = time.monotonic() + 20
    while any(map(is_alive, (int(child), int(grandchild)))):
        assert time.monotonic() < deadline, "a process has outlived the worker"
        time.sleep(0.05)
    assert folder not in list_folders()
