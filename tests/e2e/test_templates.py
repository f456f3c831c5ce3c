"""A model whose chat template never comes to an end: others are answered, and the server ends in time."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import END_TIMEOUT_S, start_server
from tests.e2e.tiny import write_tiny

LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
TEMPLATE = "{% if messages[0]['content'] == 'loop' %}" + LOOP + "{% endif %}{{ messages[0]['content'] }}"


def ask(client: openai.OpenAI, content: str) -> str:
    """Return an answer, or what is wrong."""
    messages: Any = [{"role": "user", "content": content}]
    try:
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=3)
    except openai.APIError as error:
        return str(error)
    return answer.choices[0].message.content or ""


def list_children(pid: int) -> list[int]:
    """Return the processes that a process has started; none where the system does not show it."""
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return list(map(int, found.read_text().split())) if found.exists() else []


@pytest.mark.nightly
def test_template_without_end_holds_up_nobody_and_not_the_end(
    model_home: Path, model_folder: Path, tmp_path: Path
) -> None:
    folder = write_tiny(tmp_path / "tiny", model_folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    readers = {"PARALLAX_SERVE__TOKENIZER_PROCESSES": "2"}
    server = start_server(model_home, tmp_path / "log", model=str(folder), **readers)
    children = list_children(server.process.pid)
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client, ThreadPoolExecutor(5) as threads:
        looping = threads.submit(ask, client, "loop")
        time.sleep(1)
        assert ask(client, "hello")
        assert not looping.done()
        assert "more than 10 seconds for this request" in looping.result()
        assert ask(client, "hello")
        again = [threads.submit(ask, client, "loop") for _ in range(5)]
        time.sleep(1)
        assert server.end(signal.SIGTERM) < END_TIMEOUT_S
        assert server.process.returncode == 0
        assert all("shutting down" in each.result() for each in again)
    assert "Traceback" not in server.log.read_text()
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
