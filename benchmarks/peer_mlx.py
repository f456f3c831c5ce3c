"""Compares ``parallax serve`` on the MLX backend with `mlx_lm.server`: throughput, time to first token, prefix caching.

    python -m benchmarks.peer_mlx MODEL_FOLDER --out benchmarks/results/peer-mlx.json

Both serve one folder whose weights are stored in float32 for this, with a config.json that mlx-lm reads correctly, and
both compute with the same BLAS. The same client sends both the same requests over HTTP, in turns; figures are medians
over the turns. A ratio above 1 means that Parallax is better. ``parallax, fastest`` computes prompts without a limit
beside answers (``--target-itl 0``), as mlx_lm does: more tokens per second, less evenly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_backend_mlx.runtime import BLAS, mx
from parallax_bench.client import Target, send_requests
from parallax_bench.dataset import Sizes, make_random
from parallax_bench.request import BenchRequest, BenchResult
from parallax_bench.summary import summarize

TURNS = 3
OUTPUT = 64
PREFIX = 1000
START_TIMEOUT_S = 180
OURS: dict[str, list[str]] = {"parallax": [], "parallax, fastest": ["--set", "target_itl=0"]}
"""Our servers, with their options."""
PEER_NAME = "mlx_lm.server"
VERSIONS = ("mlx", "mlx-lm")
PEER = "from parallax_backend_mlx.runtime import mx; from mlx_lm.server import main; main()"
"""A program that loads the same BLAS, then runs `mlx_lm.server`."""


def store_floats(folder: Path, target: Path) -> None:
    """Copy a model folder with its weights in float32."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights: dict[str, mx.array] = {}
    for path in folder.glob("*.safetensors"):
        loaded: Any = mx.load(str(path))
        weights |= {name: array.astype(mx.float32) for name, array in loaded.items()}
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "pt"})


def find_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def serve(command: Sequence[str], path: str) -> Iterator[str]:
    """Run a server, wait until it answers, and yield its address."""
    port = find_port()
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}{path}", process)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until ``url`` answers with a 200."""
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
            if response.status == 200:
                return
        time.sleep(0.3)
    raise RuntimeError(f"no server answers at {url}")


def ask(url: str, model: str, tasks: Sequence[BenchRequest], concurrency: int) -> list[BenchResult]:
    """Send requests, ``concurrency`` at once, and return the results; raise if one failed."""
    target = Target(url=url, model=model, ignores_eos=False)
    outcomes = asyncio.run(send_requests(target, tasks, [0.0] * len(tasks), concurrency, lambda _: None))
    if errors := [each.error for each in outcomes if each.error]:
        raise RuntimeError(errors[0])
    return outcomes


def make_tasks(num: int, prompt: int, output: int, seed: int) -> list[BenchRequest]:
    """Return requests with random words whose answers do not end early."""
    tasks = make_random(num, Sizes(input_len=prompt, output_len=output), seed)
    return [BenchRequest(route=task.route, body={**task.body, "logit_bias": {"2": -100}}) for task in tasks]


def measure_load(url: str, model: str, concurrency: int, seed: int) -> dict[str, float]:
    """Return the tokens per second and the median time to the first token, in milliseconds."""
    summary = summarize(ask(url, model, make_tasks(max(2, 2 * concurrency), 128, OUTPUT, seed), concurrency), {})
    assert summary.ttft_ms is not None
    return {"tokens_per_s": summary.output_tokens_per_s, "ttft_ms": summary.ttft_ms.p50}


def measure_prefix(url: str, model: str, seed: int) -> dict[str, float]:
    """Return the time to the first token of a long new prefix and of the cached one, in milliseconds."""
    [first] = make_tasks(1, PREFIX, 4, seed)
    endings = [" and then she said", " but nobody had seen the"]
    tasks = [
        BenchRequest(route=first.route, body={**first.body, "prompt": first.body["prompt"] + end}) for end in endings
    ]
    cold, warm = (ask(url, model, [task], 1)[0].ttft or 0.0 for task in tasks)
    return {"cold_ms": 1000 * cold, "warm_ms": 1000 * warm}


def measure_all(servers: dict[str, tuple[str, str]]) -> dict[str, dict[str, dict[str, float]]]:
    """Measure every case on each server in turns; return medians by case, server and figure."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for turn in range(TURNS):
        for name, (url, model) in servers.items():
            for case, figures in (
                ("1 at once", measure_load(url, model, 1, 10 + turn)),
                ("8 at once", measure_load(url, model, 8, 20 + turn)),
                ("shared beginning", measure_prefix(url, model, 30 + turn)),
            ):
                found.setdefault(case, {}).setdefault(name, []).append(figures)
                print(
                    f"turn {turn} {case} {name}: " + ", ".join(f"{k} {v:.1f}" for k, v in figures.items()), flush=True
                )
    return {
        case: {
            name: {key: statistics.median(each[key] for each in turns) for key in turns[0]}
            for name, turns in both.items()
        }
        for case, both in found.items()
    }


def compare_cases(cases: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Return the ratios of our servers to the other."""
    ratios = {}
    for name in OURS:
        for case in ("1 at once", "8 at once"):
            ours, peer = cases[case][name], cases[case][PEER_NAME]
            ratios[f"{name}: {case}: tokens/s"] = ours["tokens_per_s"] / peer["tokens_per_s"]
            ratios[f"{name}: {case}: time to first token"] = peer["ttft_ms"] / ours["ttft_ms"]
    ours, peer = cases["shared beginning"]["parallax"], cases["shared beginning"][PEER_NAME]
    ratios["shared beginning: our cold / our warm"] = ours["cold_ms"] / ours["warm_ms"]
    ratios["shared beginning: its warm / our warm"] = peer["warm_ms"] / ours["warm_ms"]
    return ratios


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare parallax serve with mlx_lm.server.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        store_floats(options.model, folder)
        ours = [str(Path(sys.executable).with_name("parallax")), "serve", str(folder), "--backend", "mlx"]
        peer = [sys.executable, "-c", PEER, "--model", str(folder)]
        with contextlib.ExitStack() as stack:
            servers = {
                name: (stack.enter_context(serve([*ours, "--dtype", "float32", *more], "/health")), folder.name)
                for name, more in OURS.items()
            }
            servers[PEER_NAME] = stack.enter_context(serve(peer, "/v1/models")), str(folder)
            cases = measure_all(servers)
    ratios = compare_cases(cases)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    report = describe_run(["benchmarks.peer_mlx", options.model.name], VERSIONS)
    settings = {"dtype": "float32", "blas": BLAS.name, "turns": TURNS, "prompt_words": 128, "output_tokens": OUTPUT}
    write_report(options.out, {**report, "settings": settings, "medians": cases, "ratios": ratios})
    return 0


if __name__ == "__main__":
    sys.exit(main())
