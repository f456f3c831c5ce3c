"""An engine that ends by whatever error: ``/ready`` tells the truth, clients get an error, and others serve on."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import END_TIMEOUT_S, Server, start_server
from tests.e2e.tiny import write_tiny

FAULT = """
import sys
from pathlib import Path

from parallax_core.engine.head import Head


class Panic(BaseException):
    pass


plan, wanted = Head.plan, Path(sys.argv.pop(1))


def fail(self, now):
    if wanted.exists():
        wanted.unlink()
        raise Panic("not an exception")
    return plan(self, now)


Head.plan = fail
from parallax_core.cli import main

sys.exit(main())
"""
"""`parallax` whose next engine that plans a step ends by an error once a file exists."""


@pytest.fixture
def server(model_folder: Path, tmp_path: Path) -> Iterator[Server]:
    tiny = write_tiny(tmp_path / "tiny", model_folder)
    (tmp_path / "faulty.py").write_text(FAULT)
    program = (sys.executable, str(tmp_path / "faulty.py"), str(tmp_path / "fault"))
    server = start_server(tmp_path / "home", tmp_path / "log", "--data-parallel", "2", model=str(tiny), program=program)
    yield server
    server.end(signal.SIGTERM)


def look(server: Server) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of ``/ready``."""
    try:
        with urllib.request.urlopen(f"{server.url.removesuffix('/v1')}/ready", timeout=5) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(server: Server, **fields: Any) -> Any:
    client = openai.OpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=30)
    fields = {"max_tokens": 200, "temperature": 0, "extra_body": {"ignore_eos": True}, **fields}
    return client.completions.create(model="tiny", prompt="1 2 3", **fields)


def test_engine_that_ends_is_told_and_its_requests_go_on_until_none_is_left(server: Server, tmp_path: Path) -> None:
    assert look(server) == (200, {"status": "ready", "reason": ""})
    whole = ask(server).choices[0].text
    streams = [iter(ask(server, stream=True)) for _ in range(2)]
    texts = [next(stream).choices[0].text for stream in streams]
    (tmp_path / "fault").touch()
    for index, stream in enumerate(streams):
        texts[index] += "".join(part.choices[0].text for part in stream)
    assert texts == [whole, whole]
    status, health = look(server)
    assert (status, health["status"]) == (200, "ready")
    assert "is failed: Panic: not an exception" in health["reason"]
    assert ask(server).choices[0].text == whole
    check_end(server, tmp_path)


def check_end(server: Server, folder: Path) -> None:
    """Check that a server with one engine left tells its clients when that ends too, and ends."""
    stream = iter(ask(server, stream=True))
    next(stream)
    (folder / "fault").touch()
    with pytest.raises(openai.APIError, match="Panic: not an exception"):
        list(stream)
    assert server.process.wait(END_TIMEOUT_S) == 1
    log = (folder / "log").read_text()
    assert "error: the engine failed: 2 of 2 replicas are not ready: " in log
    assert log.count("is failed: Panic: not an exception") > 1
