"""Pipelines whose stages are processes: over sockets of this machine and over TCP with keys, and what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from parallax_client.client import Client
from tests.e2e.conftest import END_TIMEOUT_S, MODEL, PARALLAX, Server, environment, start_server
from tests.support.process_pipeline import PATIENCE_S, TIMEOUT_S, TOY, Pipeline, is_alive, running

GRACE_S = 5.0
"""How much later than it should a thing may happen on a machine that is busy with tests."""
MORE_SPLITS = ((3,), (1, 2), (2, 1))


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.mark.parametrize("sizes", [(1, 1, 1), *(pytest.param(each, marks=pytest.mark.nightly) for each in MORE_SPLITS)])
async def test_split_over_processes_equals_the_whole(tmp_path: Path, sizes: Sequence[int]) -> None:
    async with running(Pipeline(tmp_path, sizes)) as pipeline:
        await pipeline.check()
        await pipeline.check_pages()


@pytest.mark.usefixtures("with_keys")
async def test_split_over_tcp_with_keys_equals_the_whole(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path, is_tcp=True)) as pipeline:
        assert pipeline.registry.address.startswith("tcp://127.0.0.1:")
        await pipeline.check()
        await pipeline.check_pages()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
async def test_lost_worker_is_replaced_and_its_requests_go_on(tmp_path: Path, number: signal.Signals) -> None:
    async with running(Pipeline(tmp_path)) as pipeline:
        before = pipeline.pids
        asking = [asyncio.create_task(pipeline.ask([each], 240)) for each in range(4)]
        while not pipeline.engine.stats()[0].output_tokens:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.005)
        os.kill(before[1], number)
        begun = time.monotonic()
        await pipeline.until("starting")
        assert time.monotonic() - begun < TIMEOUT_S + GRACE_S
        for each, (tokens, finish) in enumerate(await asyncio.gather(*asking)):
            assert finish.reason == "length", finish.message
            assert tokens == TOY.continuation([each], 240)
            assert finish.timing is not None
            assert finish.timing.recovery_s > 0
        assert "stage 1 of 3, on node 'worker/1', is lost: " in pipeline.reasons[0]
        if number == signal.SIGKILL:
            assert "stage 1 of 3, on node 'worker/1', is lost: its process was ended by SIGKILL" in pipeline.reasons[0]
        await pipeline.until("ready")
        after = pipeline.pids
        assert [after[0], after[2]] == [before[0], before[2]]
        assert after[1] != before[1]
        assert not is_alive(before[1])
        await pipeline.check()
        await pipeline.check_pages()


async def test_worker_that_is_slow_is_not_lost(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path)) as pipeline:
        asking = asyncio.create_task(pipeline.ask([1], 200))
        while not pipeline.engine.stats()[0].output_tokens:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0.005)
        os.kill(pipeline.pids[1], signal.SIGSTOP)
        await asyncio.sleep(TIMEOUT_S / 4)
        os.kill(pipeline.pids[1], signal.SIGCONT)
        tokens, _ = await asking
        assert tokens == TOY.continuation([1], 200)
        assert pipeline.reasons == []


async def test_worker_that_sends_garbage_is_found_out(tmp_path: Path) -> None:
    async with running(Pipeline(tmp_path, lies={"worker/1": {"lie": "garbage", "after": 3}})) as pipeline:
        tokens, _ = await pipeline.ask([1], 100)
        assert tokens == TOY.continuation([1], 100)
        assert "a frame cannot be read" in pipeline.reasons[0]
        await pipeline.check()
        await pipeline.check_pages()


async def test_worker_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "worker-2.sock").write_text("in the way")
    pipeline = Pipeline(tmp_path)
    await pipeline.registry.start()
    pids: list[int] = []
    with contextlib.suppress(asyncio.CancelledError):
        starting = asyncio.create_task(pipeline.engine.start())
        while not starting.done():
            pids = [*pids, *pipeline.supervisor.pids]
            await asyncio.sleep(0.01)
        assert "stage 2 of 3 on node 'worker/2': its process ended with exit code 1" in str(starting.exception())
    await pipeline.registry.stop()
    assert len(set(pids)) == 3
    assert not [pid for pid in pids if is_alive(pid)]


def list_workers(pid: int) -> list[int]:
    """Return the workers that a process has started."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in children if b"worker" in read_command(child)]


def read_command(pid: int) -> list[bytes]:
    """Return the words of the command of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


@pytest.fixture
def piped(model_home: Path, tmp_path: Path) -> Server:
    return start_server(model_home, tmp_path / "log", "--transport", "zmq", "--layers", "0-10,10-20,20-30")


def ask_model(server: Server, prompt: str) -> str:
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
        return answer.choices[0].text


PROMPTS = ("Once upon a time", "def fibonacci(n):", "The capital of France is")


def test_model_in_three_processes_equals_one_and_goes_on_when_one_is_killed(piped: Server, server: Server) -> None:
    workers = list_workers(piped.process.pid)
    try:
        with openai.OpenAI(base_url=piped.url, api_key="x") as client:
            question: Any = [{"role": "user", "content": "What is the capital of France?"}]
            answer = client.chat.completions.create(model=MODEL, messages=question, temperature=0)
        assert answer.choices[0].message.content == "The capital of France is Paris."
        assert [ask_model(piped, prompt) for prompt in PROMPTS] == [ask_model(server, prompt) for prompt in PROMPTS]
        assert len(workers) == 3
        check_kill(piped, read_stream(piped, 0, lambda: None), 1)
        workers = [*workers, *list_workers(piped.process.pid)]
    finally:
        assert piped.end(signal.SIGTERM) < END_TIMEOUT_S
    wait_until(lambda: not any(map(is_alive, workers)), 5)
    log = piped.log.read_text()
    assert re.search(r"\[worker/0/2\] [0-9:]+ INFO", log)
    assert log.count("pipeline is built anew: stage") == 1
    assert "Traceback" not in log


LENGTH, REAL_LENGTH = 48, 32
"""How many tokens are streamed, of a small model and of the real one."""


def read_stream(server: Server, num_chunks: int, kill: Callable[[], None]) -> tuple[str, str | None, int]:
    """Return the text, the end and the usage of a streamed chat; call ``kill`` after so many chunks."""
    text, end, used = "", None, 0
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        model = client.models.list().data[0].id
        length = REAL_LENGTH if model == MODEL else LENGTH
        question: Any = [{"role": "user", "content": "Count from one to thirty, in words."}]
        options: Any = {"include_usage": True}
        chunks = client.chat.completions.create(
            model=model, messages=question, temperature=0, max_tokens=length, stream=True, stream_options=options
        )
        for number, chunk in enumerate(chunks):
            if number == num_chunks:
                kill()
            for choice in chunk.choices:
                text += choice.delta.content or ""
                end = choice.finish_reason or end
            used = chunk.usage.total_tokens if chunk.usage else used
    return text, end, used


def check_kill(piped: Server, whole: tuple[str, str | None, int], stage: int) -> None:
    """Check that a stream goes on, and ends as it should, when a stage is killed in the middle of it."""
    assert whole[1] == "length"
    name = f"worker/0/{stage}".encode()
    [pid] = [pid for pid in list_workers(piped.process.pid) if name in read_command(pid)]
    assert read_stream(piped, 12, partial(os.kill, pid, signal.SIGKILL)) == whole, f"stage {stage}"
    assert not is_alive(pid)


@pytest.mark.nightly
def test_stream_of_the_model_goes_on_when_any_of_its_stages_is_killed(piped: Server) -> None:
    try:
        whole = read_stream(piped, 0, lambda: None)
        for stage in range(3):
            check_kill(piped, whole, stage)
    finally:
        piped.end(signal.SIGTERM)
    log = piped.log.read_text()
    assert log.count("pipeline is built anew: stage") == 3
    assert "Traceback" not in log


def test_stream_goes_on_on_the_other_replica(model_home: Path, split: Path, tmp_path: Path) -> None:
    log, killed = tmp_path / "log", False
    replicas = start_server(model_home, log, "--transport", "zmq", "--data-parallel", "2", model=str(split))
    try:
        whole = read_stream(replicas, 0, lambda: None)
        [pid] = [pid for pid in list_workers(replicas.process.pid) if b"worker/0/0" in read_command(pid)]
        assert read_stream(replicas, 12, partial(os.kill, pid, signal.SIGKILL)) == whole
        killed = not is_alive(pid)
    finally:
        replicas.end(signal.SIGTERM)
    assert killed
    assert re.search(r"request moved id=chatcmpl-\w+ from=0 to=1", log.read_text())
    assert "Traceback" not in log.read_text()


def list_spares(server: Server) -> list[dict[str, Any]]:
    """Return the spares that have loaded their layers."""
    nodes = Client(server.url).cluster()["waiting"]
    return [node for node in nodes if node["spare"] and node["spare"]["loaded"]]


@pytest.mark.nightly
def test_spare_worker_takes_over_from_a_killed_one(model_home: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = start_server(model_home, log, "--layers", "0-10,10-30", "--spares", "1", "--backend", "mlx")
    try:
        whole = read_stream(server, 0, lambda: None)
        wait_until(lambda: bool(list_spares(server)))
        [spare] = list_spares(server)
        assert spare["spare"] == {"stage": 1, "layers": [10, 30], "loaded": True}
        [pid] = [pid for pid in list_workers(server.process.pid) if b"worker/0/1" in read_command(pid)]
        assert read_stream(server, 12, partial(os.kill, pid, signal.SIGKILL)) == whole
        [replica] = Client(server.url).cluster()["replicas"]
        assert [stage["pid"] for stage in replica["stages"]][1] == spare["pid"]
        wait_until(lambda: [each["pid"] for each in list_spares(server)] not in ([], [spare["pid"]]))
        workers = list_workers(server.process.pid)
        assert len(workers) == 3
    finally:
        server.end(signal.SIGTERM)
    wait_until(lambda: not any(map(is_alive, workers)), 5)
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGKILL])
def test_workers_that_load_end_with_their_head(model_home: Path, tmp_path: Path, number: signal.Signals) -> None:
    command = [PARALLAX, "serve", MODEL, "--backend", "mlx", "--port", "0", "--stages", "3"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment(model_home))
    wait_until(lambda: len(list_workers(process.pid)) == 3)
    workers = list_workers(process.pid)
    begun = time.monotonic()
    process.send_signal(number)
    process.communicate(timeout=END_TIMEOUT_S + 10)
    assert time.monotonic() - begun < END_TIMEOUT_S
    wait_until(lambda: not any(map(is_alive, workers)), 5)
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_worker_ends_well_when_it_is_told_to(model_home: Path, tmp_path: Path, number: signal.Signals) -> None:
    """As systemd stops it: in time, and not as one that has failed."""
    log, command = tmp_path / "log", [PARALLAX, "worker", "--connect", "tcp://127.0.0.1:1"]
    with log.open("w") as sink:
        process = subprocess.Popen(command, stderr=sink, env=environment(model_home))
    wait_until(lambda: "no head at" in log.read_text())
    begun = time.monotonic()
    process.send_signal(number)
    assert process.wait(END_TIMEOUT_S + 10) == 0
    assert time.monotonic() - begun < END_TIMEOUT_S
    assert "Traceback" not in log.read_text()


def test_worker_in_the_background_of_a_script_ends_when_it_is_interrupted(model_home: Path, tmp_path: Path) -> None:
    """A shell without job control has what it starts with `&` ignore SIGINT."""
    log, command = tmp_path / "log", [PARALLAX, "worker", "--connect", "tcp://127.0.0.1:1"]
    script = ["sh", "-c", '"$@" & echo $!; wait $!', "sh", *command]
    with log.open("w") as sink:
        shell = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment(model_home))
    assert shell.stdout is not None
    worker = int(shell.stdout.readline())
    try:
        wait_until(lambda: "no head at" in log.read_text())
        os.kill(worker, signal.SIGINT)
        assert shell.wait(END_TIMEOUT_S + 10) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        shell.communicate(timeout=PATIENCE_S)
