"""How the processes behave: signals, ports, keys, and errors a person meets."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import END_TIMEOUT_S, MODEL, PARALLAX, Server, environment, start_server
from tests.unit.cli.command_here import run_here

STORY: Any = [{"role": "user", "content": "Tell me a long story about a dragon and a fox."}]


def run(home: Path, *args: str, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PARALLAX, *args],
        env=environment(home, **changes),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def at_home(model_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands that run in this process find the model."""
    monkeypatch.setenv("PARALLAX_HOME", str(model_home))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_signal_ends_a_busy_server_in_time_and_tells_its_clients(
    model_home: Path, split: Path, tmp_path: Path, number: signal.Signals
) -> None:
    server = start_server(model_home, tmp_path / "log", model=str(split))
    client = openai.OpenAI(base_url=server.url, api_key="x", max_retries=0)
    stream = client.chat.completions.create(model=split.name, messages=STORY, stream=True, max_tokens=1900)
    next(iter(stream))
    others = [crowd_in(server.url, split.name, size) for size in (None, 20, 0, 20, None) * 10]
    assert server.end(number) < END_TIMEOUT_S
    assert server.process.returncode == 0
    with pytest.raises(openai.APIError, match="shutting down"):
        list(stream)
    for other in others:
        other.close()
    assert "Traceback" not in (tmp_path / "log").read_text()


def crowd_in(url: str, model: str, missing: int | None) -> socket.socket:
    """Connect, and ask for a stream, all but so many bytes; or ask nothing."""
    connection = socket.create_connection(("127.0.0.1", int(url.removesuffix("/v1").rpartition(":")[2])))
    if missing is not None:
        body = json.dumps({"model": model, "messages": STORY, "stream": True, "max_tokens": 500}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        connection.sendall(data[: len(data) - missing])
    return connection


def test_signal_ends_a_server_that_is_still_loading(model_home: Path, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        command = [PARALLAX, "serve", MODEL, "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment(model_home))
    time.sleep(2.5)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=END_TIMEOUT_S + 10)
    assert time.monotonic() - begun < END_TIMEOUT_S
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_port_in_use_is_told_before_any_work(model_home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(model_home, "serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "error: cannot listen on 127.0.0.1" in done.stderr
    assert "hint: choose another --port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("at_home")
def test_listening_off_loopback_needs_a_key(tmp_path: Path) -> None:
    done = run_here("serve", "--host", "0.0.0.0", "--port", "0")  # noqa: S104 -- refused
    assert done.returncode == 2
    assert "there is no API key" in done.stderr
    assert "--insecure" in done.stderr
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    assert run_here("serve", "--api-key-file", str(empty)).returncode == 2
    assert run_here("serve", "--api-key-file", str(tmp_path / "missing")).returncode == 2


def test_key_is_asked_for_everywhere_but_health(model_home: Path, split: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("# staff\nfrom-the-file\n")
    options, outside = ("--api-key-file", str(keys)), {"PARALLAX_API_KEY": "from-outside"}
    server = start_server(model_home, tmp_path / "log", *options, model=str(split), **outside)
    try:
        for key in ("from-the-file", "from-outside"):
            assert openai.OpenAI(base_url=server.url, api_key=key).models.list().data[0].id == split.name
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url, api_key="# staff").models.list()
        health = server.url.removesuffix("/v1") + "/health"
        with urllib.request.urlopen(health) as response:
            assert response.status == 200
        done = run(model_home, "chat", "--url", server.url, "hello")
        assert done.returncode == 1
        assert "hint: set PARALLAX_API_KEY" in done.stderr
    finally:
        server.end(signal.SIGTERM)


def test_server_answers_503_while_it_loads(model_home: Path, split: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with (tmp_path / "log").open("w") as log:
        command = [PARALLAX, "serve", str(split), "--backend", "mlx", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment(model_home))
    seen: list[int] = []
    deadline = time.monotonic() + 60
    while (not seen or seen[-1] != 200) and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
                seen.append(response.status)
        except urllib.error.HTTPError as error:
            seen.append(error.code)
            error.close()
        except OSError:
            pass
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=10)
    assert seen[-1] == 200
    assert 503 in seen


@pytest.mark.parametrize(
    ("args", "code", "error", "hint"),
    [
        (["serve", "no-such-model", "--port", "0"], 1, "no model named 'no-such-model'", "alias"),
        (["serve", "smollm2-135", "--port", "0"], 1, "no model named 'smollm2-135'", "did you mean 'smollm2-135m'?"),
        (["serve", "--backend", "mlxx", "--port", "0"], 1, "no backend named 'mlxx'", "did you mean 'mlx'?"),
        (["serve", "./nowhere", "--port", "0"], 1, "nowhere", ""),
        (["serve", "--port", "70000"], 2, "'--port'", "serve --help"),
        (["serve", "--dtype", "int3"], 2, "'--dtype'", "serve --help"),
        (["sevre"], 2, "No such command 'sevre'", "did you mean `parallax serve`?"),
        (["models", "show", "hf:org/name"], 1, "'hf:org/name' is not on this machine", "models pull hf:org/name"),
        (["models", "rm", "pypi:something"], 1, "something", ""),
        (["chat", "--url", "http://127.0.0.1:9/v1", "x"], 1, "no server answers", "parallax serve"),
    ],
)
@pytest.mark.usefixtures("at_home")
def test_mistake_gets_an_error_and_a_hint(args: list[str], code: int, error: str, hint: str) -> None:
    done = run_here(*args)
    assert done.returncode == code, done.stderr
    assert "error: " in done.stderr
    assert error in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


def test_chat_answers_one_question_from_argument_or_pipe(model_home: Path, server: Server) -> None:
    question = "What is the capital of France?"
    options = ("--url", server.url, "--temperature", "0")
    assert run(model_home, "chat", *options, question).stdout == "The capital of France is Paris.\n"
    assert run(model_home, "chat", *options, stdin=question + "\n").stdout == "The capital of France is Paris.\n"


def test_command_survives_closed_and_full_streams(model_home: Path, server: Server) -> None:
    def shell(line: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f"'{PARALLAX}' {line}"]
        return subprocess.run(
            command, env=environment(model_home), capture_output=True, text=True, timeout=60, check=False
        )

    for line, code in (
        (f"chat --url {server.url} --max-tokens 2 hi >&-", 0),
        (f"chat --url {server.url} <&-", 2),
        (f"chat --url {server.url} </dev/null", 2),
        ("models list >/dev/full", 1),
        ("models list | head -c1 >/dev/null", 0),
    ):
        done = shell(line)
        assert "Traceback" not in done.stderr, (line, done.stderr)
        assert done.returncode == code, (line, done.stderr)


def test_chat_converses_in_a_terminal(model_home: Path, server: Server) -> None:
    keeper, terminal = pty.openpty()
    command = [PARALLAX, "chat", "--url", server.url, "--temperature", "0", "--max-tokens", "40"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment(model_home))
    os.close(terminal)

    screen = ""

    def until(text: str) -> str:
        """Return what is shown up to and including ``text``, and leave the rest for the next call."""
        nonlocal screen
        while text not in screen:
            screen += os.read(keeper, 4096).decode()
        seen, _, screen = screen.partition(text)
        return seen + text

    until("> ")
    os.write(keeper, b"What is the capital of France?\n")
    assert "The capital of France is Paris." in until("Paris.\r\n")
    until("> ")
    os.write(keeper, b"/clear\n")
    until("> ")
    os.write(keeper, b"\x04")
    assert process.wait(10) == 0
    os.close(keeper)


@pytest.mark.usefixtures("at_home")
def test_models_are_listed_and_described() -> None:
    listed = run_here("models", "list").stdout
    assert "smollm2-135m" in listed
    assert "on this machine" in listed
    shown = run_here("models", "show", MODEL).stdout
    for expected in ("LlamaForCausalLM", "30", "49152", "8192 tokens", "chat template"):
        assert expected in shown


def test_plugins_are_listed_as_json() -> None:
    found = {plugin["name"]: plugin for plugin in json.loads(run_here("plugins", "--json").stdout)}
    assert found["mlx"]["distribution"] == "parallax-backend-mlx"
    assert found["mlx"]["state"] == "loaded"
    assert found["mlx"]["offers"] == {"backends": ["mlx"], "settings": ["mlx"]}
    assert found["core"]["offers"]["sources"] == ["file"]
    assert found["hub"]["offers"] == {"sources": ["hf", "ms", "ollama"]}
    assert found["pypi"]["offers"] == {"sources": ["pypi", "gguf"]}


@pytest.mark.skipif(sys.platform != "linux", reason="on Metal there is no BLAS to choose")
def test_doctor_names_the_blas(model_home: Path) -> None:
    done = run(model_home, "doctor")
    assert done.returncode == 0, done.stdout
    assert "OpenBLAS" in done.stdout


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="on Metal there is no BLAS to choose")
def test_doctor_warns_of_a_slow_blas(model_home: Path) -> None:
    done = run(model_home, "doctor", PARALLAX_MLX__BLAS="off")
    assert "WARNING" in done.stdout
    assert "PARALLAX_MLX__BLAS" in done.stdout


def test_version_is_that_of_the_distribution(model_home: Path) -> None:
    assert run(model_home, "--version").stdout.startswith("parallax 0.")
