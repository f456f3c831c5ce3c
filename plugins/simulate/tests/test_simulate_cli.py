from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from plugins.cluster.tests.cli.test_plan import CONFIG, NODES
from tests.unit.cli.command_here import run_here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "nodes.toml").write_text(NODES)
    return tmp_path


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_here("simulate", str(folder), "--nodes", str(folder / "nodes.toml"), *options)


def test_table_has_latencies_goodput_and_load(folder: Path) -> None:
    done = run(folder, "--rate", "0.5", "--requests", "10", "--prompt", "64", "--output", "8", "--churn", "20")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("to the first token", "P99", "10 finished", "goodput", "busy"))


def test_trace_file_is_simulated_as_json(folder: Path) -> None:
    trace = folder / "trace.jsonl"
    trace.write_text('{"at": 0, "prompt": 64, "output": 4}\n{"at": 1, "prompt": 32, "output": 6}\n')
    done = run(folder, "--trace", str(trace), "--json", "--routing", "least-finish-time:choices=2", "--slow", "mini=2")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["num_finished"] == 2
    assert report["tokens_per_s"] * report["duration_s"] == pytest.approx(10)


def test_coarse_simulation_finishes_the_same_requests(folder: Path) -> None:
    options = ("--rate", "0.5", "--requests", "10", "--prompt", "64", "--output", "8", "--json")
    exact, coarse = (json.loads(run(folder, *options, *more).stdout) for more in ((), ("--coarse",)))
    assert coarse["num_finished"] == exact["num_finished"] == 10
    assert coarse["ttft_s"]["p50"] == pytest.approx(exact["ttft_s"]["p50"], rel=0.05)


def test_users_send_the_next_request_after_an_answer(folder: Path) -> None:
    options = ("--users", "2", "--requests", "6", "--prompt", "64", "--output", "8", "--json")
    report = json.loads(run(folder, *options).stdout)
    assert (report["num_finished"], report["refused"]) == (6, [])


def test_unknown_family_is_simulated_by_its_size(folder: Path) -> None:
    (folder / "config.json").unlink()
    options = ("--requests", "4", "--prompt", "64", "--output", "8", "--json", "--weight-bits", "8", "--layers", "32")
    dense = json.loads(run(folder, *options, "--params", "8B").stdout)
    sparse = json.loads(run(folder, *options, "--params", "8B", "--active", "1B").stdout)
    assert sparse["num_finished"] == dense["num_finished"] == 4
    assert sparse["tokens_per_s"] > dense["tokens_per_s"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--users", "2", "--rate", "1"), "--users sends a request after each answer"),
        (("--users", "2", "--coarse"), "--users sends a request after each answer"),
        (("--prompt", "x"), "--prompt is 'x'"),
        (("--trace", "none"), "cannot be read"),
        (("--slow", "nobody=2"), "there is no node 'nobody'"),
        (("--slow", "mini=fast"), "is no number of times"),
        (("--routing", "nothing"), "nothing"),
        (("--coarse", "--batching", "hold"), "no batching policies"),
        (("--coarse", "--shared-prefix", "8"), "no prefix cache"),
        (("--weight-bits", "64"), "does not fit"),
        (("--params", "8B"), "--layers is missing"),
        (("--backend", "nobody"), "nobody"),
    ],
)
def test_wrong_input_is_an_error_that_names_it(folder: Path, options: tuple[str, ...], what: str) -> None:
    done = run(folder, "--requests", "1", *options)
    assert done.returncode in {1, 2}
    assert "error:" in done.stderr
    assert what in done.stderr
    assert "Traceback" not in done.stderr
