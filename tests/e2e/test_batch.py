"""``parallax batch`` with a server of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import PARALLAX, environment
from tests.e2e.tiny import write_tiny


def run(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [PARALLAX, "batch", *args]
    return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=120, check=False)


def write_requests(path: Path, number: int, max_tokens: int) -> Path:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    path.write_text("".join(json.dumps({"custom_id": str(each), **line}) + "\n" for each in range(number)))
    return path


@pytest.fixture
def tiny(model_folder: Path, tmp_path: Path) -> str:
    return str(write_tiny(tmp_path / "tiny", model_folder))


def test_batch_runs_a_server_of_its_own(tiny: str, model_home: Path, tmp_path: Path) -> None:
    file = write_requests(tmp_path / "in.jsonl", 20, 8)
    command = [PARALLAX, "batch", str(file), "--model", tiny, "--", "--backend", "mlx", "--set", "max_per_minute=0"]
    done = subprocess.run(
        command, env=environment(model_home), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "20 of 20 requests answered" in done.stderr
    assert "batch: 20 of 20" in done.stderr
    texts = [json.loads(line)["response"]["body"] for line in (tmp_path / "in.out.jsonl").read_text().splitlines()]
    assert len({text["choices"][0]["text"] for text in texts}) == 1


def test_server_that_cannot_start_is_an_error(model_home: Path, tmp_path: Path) -> None:
    file = write_requests(tmp_path / "in.jsonl", 1, 8)
    done = run(model_home, str(file), "--model", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr.count("error: ") == 2
    assert "error: the server has not started\nhint: its output, above, says why" in done.stderr


@pytest.mark.nightly
def test_server_ends_with_a_batch_that_is_killed(tiny: str, model_home: Path, tmp_path: Path) -> None:
    file = write_requests(tmp_path / "in.jsonl", 500, 400)
    command = [PARALLAX, "batch", str(file), "--model", tiny, "--", "--backend", "mlx"]
    with subprocess.Popen(command, env=environment(model_home), stderr=subprocess.DEVNULL) as batch:
        wait_until(lambda: (tmp_path / "in.out.jsonl").exists() and bool((tmp_path / "in.out.jsonl").stat().st_size))
        [child] = Path(f"/proc/{batch.pid}/task/{batch.pid}/children").read_text().split()
        batch.kill()
    wait_until(lambda: not Path(f"/proc/{child}").exists())
    done = len((tmp_path / "in.out.jsonl").read_text().splitlines())
    assert 0 < done < 500


def wait_until(is_so: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)
