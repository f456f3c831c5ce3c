"""Responses in the background go on when the server is killed, or stopped, and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import Server, start_server

MOST = 150
"""The tokens of an answer: enough to end the server in the middle."""
SEEN = 20
"""The events that the client has read by then."""


CLIENTS: list[openai.OpenAI] = []


@pytest.fixture(autouse=True)
def _closed_clients() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def connect(server: Server) -> Any:
    CLIENTS.append(openai.OpenAI(base_url=server.url, api_key="none needed", max_retries=0))
    return CLIENTS[-1].responses


def ask(server: Server, **fields: Any) -> Any:
    model = server.lines[0].split("model=")[1].strip()
    return connect(server).create(model=model, input="Tell a story.", **({"max_output_tokens": MOST} | fields))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_response_goes_on_after_a_restart(number: int, split: Path, model_home: Path, tmp_path: Path) -> None:
    options = ("--set", f"response_store={tmp_path / 'responses'}")
    server = start_server(model_home, tmp_path / "first", *options, model=str(split))
    fields = {"temperature": 1.0, "seed": 7} if number == signal.SIGKILL else {"temperature": 0.0}
    more = {"extra_body": {"seed": fields.pop("seed")}} if "seed" in fields else {}
    before = []
    with ask(server, background=True, stream=True, **fields, **more) as stream:
        for event in stream:
            before.append(event)
            if len(before) == SEEN:
                break
    server.end(number)
    assert not any(event.type == "response.failed" for event in before)
    name = before[0].response.id
    server = start_server(model_home, tmp_path / "second", *options, model=str(split))
    try:
        client = connect(server)
        after = list(client.retrieve(name, stream=True, starting_after=before[-1].sequence_number))
        whole = ask(server, **fields, **more)
        again = list(client.retrieve(name, stream=True))
    finally:
        server.end(signal.SIGTERM)
    events = [*before, *after]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    ended = events[-1].response
    assert (ended.id, ended.created_at) == (name, before[0].response.created_at)
    assert ended.output_text == whole.output_text
    assert ended.usage.output_tokens == MOST
    assert [event.type for event in again] == [event.type for event in events]


def test_response_in_memory_says_that_it_ends_with_its_server(split: Path, model_home: Path, tmp_path: Path) -> None:
    server = start_server(model_home, tmp_path / "log", model=str(split))
    events = []
    for event in ask(server, background=True, stream=True, max_output_tokens=1900):
        events.append(event)
        if len(events) == SEEN:
            server.process.send_signal(signal.SIGTERM)
    server.end(signal.SIGTERM)
    assert events[-1].type == "response.failed"
