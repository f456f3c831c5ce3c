"""``parallax batch`` over a server on a real socket, with the toy model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from parallax_batch import run as batch_run
from parallax_batch.cli import app
from parallax_client.client import Client
from parallax_core.api import ParallaxError, SequenceSpec
from parallax_core.server.options import ServerOptions
from tests.unit.server.letters import answer
from tests.unit.server.thread import Threaded


@pytest.fixture
def server() -> Iterator[Threaded]:
    with Threaded() as server:
        yield server


def make_chat(name: str, content: str = "hello", **fields: Any) -> dict[str, Any]:
    body = {"model": "toy", "messages": [{"role": "user", "content": content}], "max_tokens": 6, **fields}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read_lines(path: Path) -> dict[str | None, Any]:
    return {line["custom_id"]: line for line in map(json.loads, path.read_text().splitlines())}


def run(file: Path, *options: str, server: Threaded | None = None) -> Result:
    place = ["--url", f"{server.url}/v1"] if server else []
    return CliRunner().invoke(app, [str(file), *place, *options])


def read_text(result: Any) -> str:
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def test_every_request_is_answered_in_openai_s_form(server: Threaded, tmp_path: Path) -> None:
    texts = {f"id {number}": f"question {'abc'[number % 3]}" for number in range(40)}
    completion = {"custom_id": "é", "method": "POST", "url": "/v1/completions"}
    completion["body"] = {"model": "toy", "prompt": "once", "max_tokens": 4}  # type: ignore[assignment]
    file = write_lines(tmp_path / "in.jsonl", *(make_chat(*each) for each in texts.items()), "", completion)
    found = run(file, server=server)
    assert (found.exit_code, found.output.splitlines()[-1][:26]) == (0, "41 of 41 requests answered")
    results = read_lines(tmp_path / "in.out.jsonl")
    assert {name: read_text(results[name]) for name in texts} == {name: answer(text, 6) for name, text in texts.items()}
    assert results["é"]["response"]["body"]["choices"][0]["text"] == answer("once", 4)
    for result in results.values():
        assert set(result) == {"id", "custom_id", "response", "error"}
        assert (result["response"]["status_code"], result["error"]) == (200, None)
        assert result["response"]["request_id"]
    assert len({result["id"] for result in results.values()}) == len(results)
    assert not (tmp_path / "in.errors.jsonl").exists()


def test_requests_have_the_lowest_priority_unless_they_state_one(server: Threaded, tmp_path: Path) -> None:
    specs: list[SequenceSpec] = []
    server.listening.site.stage.before_open = specs.append
    file = write_lines(tmp_path / "in.jsonl", make_chat("a"), make_chat("b", "other", priority=5))
    run(file, "--concurrency", "1", server=server)
    assert [spec.priority for spec in specs] == [2**31 - 1, 5]


def test_what_fails_is_in_a_file_of_its_own_and_is_sent_again(server: Threaded, tmp_path: Path) -> None:
    file = write_lines(
        tmp_path / "in.jsonl",
        make_chat("good"),
        make_chat("wrong model", model="other"),
        make_chat("wrong field", temperature=9),
        {**make_chat("embedding"), "url": "/v1/embeddings"},
        make_chat("good"),
        "{",
    )
    found = run(file, server=server)
    assert isinstance(found.exception, ParallaxError)
    assert found.exception.message == f"5 of 6 requests failed: {tmp_path / 'in.errors.jsonl'}"
    assert set(read_lines(tmp_path / "in.out.jsonl")) == {"good"}
    errors = read_lines(tmp_path / "in.errors.jsonl")
    assert errors["wrong model"]["response"]["status_code"] == 404
    assert errors["wrong field"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["embedding"]["response"]["status_code"] in {400, 404}
    assert errors["good"]["error"]["code"] == "duplicate_custom_id"
    assert errors[None]["error"]["message"].startswith("line 6 is not JSON")

    write_lines(file, make_chat("good"), make_chat("wrong model"), make_chat("wrong field", temperature=0))
    found = run(file, server=server)
    assert (found.exit_code, found.output.splitlines()[-1][:52]) == (
        0,
        "2 of 3 requests answered, 1 had an answer already: /",
    )
    assert not (tmp_path / "in.errors.jsonl").exists()


def test_batch_goes_on_after_the_last_whole_result(server: Threaded, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "in.jsonl", *(make_chat(str(number), "abcdef"[number]) for number in range(6)))
    run(file, "--concurrency", "1", server=server)
    output = tmp_path / "in.out.jsonl"
    whole = output.read_bytes()
    kept = whole.splitlines(keepends=True)
    for cut in (0, len(kept[0]) // 2, len(kept[0]), len(kept[0]) + 1, len(whole) - 1):
        output.write_bytes(whole[:cut])
        assert run(file, server=server).exit_code == 0
        assert {name: read_text(line) for name, line in read_lines(output).items()} == {
            str(number): answer("abcdef"[number], 6) for number in range(6)
        }
        num_whole = whole[:cut].count(b"\n")
        assert output.read_bytes().splitlines(keepends=True)[:num_whole] == kept[:num_whole]


def test_busy_server_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_run, "MAX_WAIT_S", 0.01)
    with Threaded(ServerOptions(max_concurrent=1)) as server:
        file = write_lines(tmp_path / "in.jsonl", *(make_chat(str(number)) for number in range(12)))
        assert run(file, "--concurrency", "6", server=server).exit_code == 0
    assert len(read_lines(tmp_path / "in.out.jsonl")) == 12


def test_batch_ends_when_the_server_is_gone_and_goes_on_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "WAITS_S", (0.01,))
    file = write_lines(tmp_path / "in.jsonl", *(make_chat(str(number), max_tokens=200) for number in range(50)))
    with Threaded() as server:
        send, num_sent = Client.send, 0

        def send_some(self: Any, path: str, body: dict[str, Any]) -> Any:
            nonlocal num_sent
            num_sent += 1
            if num_sent > 10:
                self._url = "http://127.0.0.1:1/v1"
            return send(self, path, body)

        monkeypatch.setattr(Client, "send", send_some)
        found = run(file, "--concurrency", "2", server=server)
        assert isinstance(found.exception, ParallaxError)
        assert "no server answers at" in found.exception.message
        assert "run it again to go on" in found.exception.hint
        monkeypatch.setattr(Client, "send", send)
        done = len(read_lines(tmp_path / "in.out.jsonl"))
        assert 8 <= done <= 10
        found = run(file, server=server)
        assert f"{50 - done} of 50 requests answered, {done} had an answer already" in found.output
    assert len(read_lines(tmp_path / "in.out.jsonl")) == 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "http://x/v1", "--model", "m"], "--url and --model contradict"),
        (["--", "--backend", "mlx"], "'--backend' is an option of a server to start"),
        (["--output", "in.jsonl"], "must be three different files"),
        (["--errors", "in.out.jsonl"], "must be three different files"),
        (["--output", "notes"], "has no results of a batch"),
        (["--output", "missing/x"], "cannot write missing/x: No such file"),
        (["--url", "http://127.0.0.1:1/v1"], "no server answers at"),
    ],
)
def test_wrong_use_is_an_error_and_changes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(Path("in.jsonl"), make_chat("a"))
    write_lines(Path("notes"), "Remember the milk")
    write_lines(Path("in.errors.jsonl"), {"id": "batch_req_1", "custom_id": "a", "response": None, "error": {}})
    shutil.copytree(".", tmp_path / "before")
    found = run(Path("in.jsonl"), *options)
    assert isinstance(found.exception, ParallaxError)
    assert message in found.exception.message
    for path in Path("before").iterdir():
        assert Path(path.name).read_bytes() == path.read_bytes()


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    found = run(tmp_path / "none.jsonl")
    assert isinstance(found.exception, ParallaxError)
    assert found.exception.message.startswith("cannot read")
