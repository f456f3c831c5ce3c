"""``parallax status`` over a server that gives prepared answers, and over the real one's own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from parallax_cluster.cli.status import app, render
from parallax_core.base.errors import ParallaxError
from parallax_core.server.error_body import error_body
from tests.unit.server.letters import Site

STAGE = {
    "stage": 0,
    "node": "worker/0/0",
    "host": "mini",
    "pid": 71,
    "backend": "mlx",
    "layers": [0, 10],
    "device": "cpu",
    "dtype": "float32",
    "weight_bytes": 90_500_000,
    "pools": [{"kind": "full", "used": 3, "total": 100}],
    "steps": 5,
    "tokens": 44,
    "queued": 2,
    "restarts": 1,
    "step_seconds": {"mean": 0.2, "median": 0.0031},
}
NOTHING = dict.fromkeys(("host", "pid", "backend", "layers", "device", "dtype", "step_seconds"))
CLUSTER = {
    "object": "cluster",
    "model": "toy",
    "models": [
        {"id": "toy", "state": "ready", "error": None},
        {"id": "big", "state": "unloaded", "error": "it does not fit"},
    ],
    "status": "ready",
    "reason": "1 of 2 replicas are not ready",
    "replicas": [
        {
            "model": "toy",
            "rank": 0,
            "status": "ready",
            "reason": "",
            "drained": True,
            "requests": 3,
            "running": 2,
            "waiting": 1,
            "pending_tokens": 12,
            "losses": 1,
            "hop_seconds": 0.00042,
            "limits": {"max_running": 64, "max_waiting": 256, "max_batch_tokens": 297},
            "stages": [STAGE, {**STAGE, **NOTHING, "stage": 1, "pools": []}],
        }
    ],
    "waiting": [
        {"node": "far/7", "host": "far", "pid": 7, "address": "tcp://far:9", "backends": ["mlx", "torch"]},
        {
            "node": "near/8",
            "host": "near",
            "pid": 8,
            "address": "tcp://near:9",
            "backends": ["mlx"],
            "spare": {"stage": 1, "layers": [10, 20], "loaded": False},
        },
    ],
    "nodes": [
        {
            "node": "far/7",
            "profile": {
                "device": "RTX4090",
                "memory": 20 * 10**9,
                "total_memory": 24 * 10**9,
                "flops": 165e12,
                "bandwidth": 1e12,
                "measured": False,
                "disk_free": 10**12,
                "disk_bandwidth": 1e9,
                "links": [{"peer": f"node/{i}", "round_trip_seconds": i / 1000, "bandwidth": 1e8} for i in range(6)],
            },
        },
        {
            "node": "near/8",
            "profile": {
                "device": "",
                "memory": 10**9,
                "total_memory": None,
                "flops": 5e10,
                "bandwidth": 5e9,
                "measured": True,
                "disk_free": None,
                "disk_bandwidth": 1e9,
                "links": [],
            },
        },
        {"node": "worker/0/0", "profile": None},
    ],
}

SHOWN = """\
toy: ready (1 of 2 replicas are not ready)
big: unloaded, could not be loaded: it does not fit

replica 0: ready, drained
  2/64 running, 1/256 waiting, 12 tokens to compute, hop 0.42 ms, 1 losses
STAGE  LAYERS  NODE        HOST  PID  BACKEND  DEVICE  DTYPE    WEIGHTS  PAGES  STEP     TOKENS  QUEUED  RESTARTS
0      0-10    worker/0/0  mini  71   mlx      cpu     float32  90 MB    3/100  3.10 ms  44      2       1
1      -       worker/0/0  -     -    -        -       -        90 MB    -      -        44      2       1

nodes that wait for a stage:
NODE    HOST  PID  ADDRESS       BACKENDS   SPARE FOR
far/7   far   7    tcp://far:9   mlx,torch  -
near/8  near  8    tcp://near:9  mlx        stage 1, layers 10-20 (loading)

reports of the nodes:
NODE    DEVICE             MEMORY           TFLOPS  READS      DISK     LINKS
far/7   RTX4090 (typical)  20.0 of 24.0 GB  165     1000 GB/s  1000 GB  node/0 0.00 ms, node/1 1.00 ms and 4 more
near/8  -                  1.0 GB           0.05    5 GB/s     -        -"""


class Peer:
    """A server that gives one prepared answer after the other, the last again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = [(200, CLUSTER)]
        self.asked: list[tuple[str, str | None]] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.asked.append((self.path, self.headers["Authorization"]))
                code, body = peer.answers.pop(0) if len(peer.answers) > 1 else peer.answers[0]
                sent = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def run(*arguments: str) -> str:
    """Run ``parallax status`` and return what it prints; what it raises is raised."""
    ran = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ran.exit_code == 0
    return ran.stdout


def test_status_shows_replicas_stages_and_who_waits(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARALLAX_API_KEY", "secret")
    assert run("--url", peer.url) == f"{SHOWN}\n"
    assert peer.asked == [("/v1/cluster", "Bearer secret")]


def test_status_as_json_is_the_answer_of_the_server(peer: Peer) -> None:
    assert json.loads(run("--url", peer.url, "--json")) == CLUSTER


def test_status_reads_what_the_server_really_answers() -> None:
    with Site() as site:
        site.ask(max_tokens=2)
        lines = render(site.client.get("/v1/cluster").json()).splitlines()
    assert lines[0] == "toy: ready"
    assert lines[-1].split()[:3] == ["0", f"0-{site.stage.info.num_layers}", "stage-0"]


@pytest.mark.parametrize(
    ("code", "body", "message", "hint"),
    [
        (401, {"error": {"message": "no valid API key"}}, "no valid API key", "a key that has the role 'admin'"),
        (
            403,
            {"error": {"message": "yours has the role 'user'", "code": "insufficient_permissions"}},
            "the role 'user'",
            "set PARALLAX_API_KEY to a key that has the role 'admin'",
        ),
        (
            403,
            error_body(403, "you are a user; not an admin", code="machine_not_trusted", hint="do it; or leave it"),
            "^you are a user; not an admin$",
            "do it; or leave it",
        ),
        (403, {"error": {"message": "no such name", "code": "host_not_allowed"}}, "no such name", ""),
        (403, ["no error of ours"], "the server answered 403", ""),
        (404, {"detail": "Not Found"}, "not a Parallax server", "--url"),
        (200, b"<html>", "not a Parallax server", "--url"),
        (200, ["cluster"], "not a Parallax server", "--url"),
        (500, b"", "the server answered 500", ""),
    ],
)
def test_answer_that_is_no_status_is_an_error(peer: Peer, code: int, body: Any, message: str, hint: str) -> None:
    peer.answers = [(code, body)]
    with pytest.raises(ParallaxError, match=message) as caught:
        run("--url", peer.url)
    assert hint in caught.value.hint


def test_hint_has_the_path_that_an_address_lacks(peer: Peer) -> None:
    peer.answers = [(404, {"detail": "Not Found"})]
    address = peer.url.removesuffix("/v1")
    with pytest.raises(ParallaxError) as caught:
        run("--url", address)
    assert caught.value.hint.endswith(f"such as {address}/v1")


def test_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ParallaxError, match=r"no server answers at http://127.0.0.1:1/v1: .*refused"):
        run("--url", "http://127.0.0.1:1/v1")


def stop_after(monkeypatch: pytest.MonkeyPatch, rounds: int) -> list[float]:
    """Have somebody press Ctrl-C after so many waits, and return what is waited for."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr("parallax_cluster.cli.status.time.sleep", sleep)
    return waits


def test_watched_status_outlasts_a_server_that_is_gone_for_a_while(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = stop_after(monkeypatch, 2)
    peer.answers = [(200, CLUSTER), (503, {"error": {"message": "out for lunch"}}), (200, CLUSTER)]
    printed = run("--url", peer.url, "--watch", "--interval", "0.5")
    assert printed == f"{SHOWN}\nerror: out for lunch\n{SHOWN}\n"
    assert waits == [0.5] * 3


def test_watched_status_as_json_is_a_line_each(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 1)
    lines = run("--url", peer.url, "--watch", "--json").splitlines()
    assert [json.loads(line) for line in lines] == [CLUSTER, CLUSTER]


def test_watched_status_stays_in_place_on_a_terminal(peer: Peer) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "parallax_core", "status", "--url", peer.url, "--watch", "--interval", "0.1"]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower) as process:
        os.close(follower)
        seen = b""
        while seen.count(b"replica 0: ready") < 3:
            seen += os.read(leader, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # how the other end of a terminal says that it is closed
            while more := os.read(leader, 65536):
                seen += more
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[?1049h" in seen  # the other screen, and back
    assert seen.rstrip().endswith((b"\x1b[?1049l", b"\x1b[?25h"))
