"""``parallax serve --backend vllm --python vllm=...`` with real requests, and with kills under load."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_server import RealServer, serve_model

OPTIONS = ("max_model_len=2048", "kv_cache_gb=1", "threads=1")
START_S = 240.0

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def server(tmp_path: Path, model: Path) -> Iterator[RealServer]:
    with serve_model(model, tmp_path, "vllm", OPTIONS) as server:
        yield server


def list_group(pid: int) -> list[int]:
    """Return the processes of the group that ``pid`` leads."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[2]) == pid:
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def is_ready(server: RealServer) -> bool:
    return bool(server.replica()["status"] == "ready")


def test_requests_are_answered_and_killed_engines_come_back(server: RealServer) -> None:
    first = server.complete(max_tokens=8, temperature=0, logprobs=2)
    assert first["choices"][0]["text"].startswith(" Paris")
    assert server.complete(max_tokens=40, temperature=0, stop=["."])["choices"][0]["finish_reason"] == "stop"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        server.complete(max_tokens=4096)
    chat = server.ask(
        "/chat/completions", model=server.model, messages=[{"role": "user", "content": "Hi"}], max_tokens=4
    )
    assert chat["usage"]["completion_tokens"] <= 4
    pid = server.replica()["stages"][0]["pid"]
    group = list_group(pid)
    assert len(group) > 1
    core = next(each for each in group if each != pid and b"EngineCor" in Path(f"/proc/{each}/comm").read_bytes())
    for victim in (core, None):  # a process of vLLM, then the worker of Parallax
        check_kill(server, victim)
    log = server.log.read_text()
    assert all(line.startswith("[") or line[:1].isdigit() or ":" in line for line in log.splitlines() if line)


def check_kill(server: RealServer, victim: int | None) -> None:
    """Kill a process under load: every request ends with an error, and the engine comes back without orphans."""
    pid = server.replica()["stages"][0]["pid"]
    group = list_group(pid)
    replies: list[Any] = []

    def load() -> None:
        try:
            replies.append(server.complete(max_tokens=1500, temperature=0, ignore_eos=True))
        except urllib.error.HTTPError as error:
            replies.append(json.load(error))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.replica()["running"] == len(threads), 60)
    os.kill(pid if victim is None else victim, signal.SIGKILL)
    for thread in threads:
        thread.join(120)
    assert len(replies) == len(threads)
    assert all("engine" in reply["error"]["message"] for reply in replies), replies
    wait_until(lambda: is_ready(server), START_S)
    wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in group), 20)
    assert server.complete(max_tokens=2, temperature=0)["choices"][0]["text"].startswith(" Paris")
    assert server.replica()["losses"] >= 1
