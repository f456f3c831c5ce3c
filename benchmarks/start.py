"""Measures the start of ``parallax serve`` by part, and how fast a large model is loaded.

    python -m benchmarks.start MODEL_FOLDER --out benchmarks/results/start.json

``ready`` is the time from the start of the process to the ready line, and ``first_token`` to the first token of a
request sent then. The parts are processes of their own that only do that part; they overlap in a start. Each has its
time and its processor time in seconds, the least of some runs, since other load makes all of them longer. ``large``
opens a stage on random weights of a Llama of about two gigabytes, and compares it with reading the same file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report

RUNS = 3
VERSIONS = ("torch", "mlx", "parallax-core")
SERVER = "import parallax_core.server.app, parallax_core.server.run, parallax_core.server.service"
PARTS = {
    "python": "pass",
    "command": "import parallax_core.cli.serve",
    "server": SERVER,
    "tokenizer": "import parallax_core.server.tokenizer_main",
}
OPEN = """
import sys, time
from pathlib import Path
from {module}.backend import {backend}
from parallax_core.api import StagePlan
begun, used = time.perf_counter(), time.process_time()
stage = {backend}().open_stage(StagePlan(model=Path(sys.argv[1])))
print(time.perf_counter() - begun, time.process_time() - used)
stage.close()
"""
BACKENDS = {
    "torch": {"module": "parallax_backend_torch", "backend": "TorchBackend"},
    "mlx": {"module": "parallax_backend_mlx", "backend": "MlxBackend"},
}
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 20}
"""With SmolLM2's vocabulary, 1.1 billion parameters."""
HEADS = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
READ = 2**24
"""Bytes read at once."""

Times = dict[str, float]


def time_process(arguments: Sequence[str]) -> Times:
    """Return the seconds and processor seconds of a run of Python."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}")
    return {"seconds": time.perf_counter() - begun, "processor": usage.ru_utime + usage.ru_stime}


def open_stage(backend: str, model: Path) -> Times:
    """Return the times of opening a stage of the whole model, in a new process, without the imports."""
    code = OPEN.format(**BACKENDS[backend])
    said = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True).stdout
    seconds, processor = map(float, said.split()[-2:])
    return {"seconds": seconds, "processor": processor}


def start_server(backend: str, model: Path) -> Times:
    """Return the seconds until a server is ready, and until it gives its first token."""
    command = [sys.executable, "-m", "parallax_core", "serve", str(model), "--backend", backend, "--port", "0"]
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        times = {"ready": time.perf_counter() - begun}
        body = {"model": model.resolve().name, "prompt": "Once upon a time", "max_tokens": 1}
        request = urllib.request.Request(
            f"{ready.split()[1]}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            response.read()
        times["first_token"] = time.perf_counter() - begun
        process.terminate()
    return times


def take_least(runs: Sequence[Times]) -> Times:
    """Return the least of each time."""
    return {key: round(min(run[key] for run in runs), 3) for key in runs[0]}


def make_large(model: Path, target: Path) -> Path:
    """Write a random Llama in bfloat16 with the tokenizer of ``model``, and return the file of its weights."""
    import torch
    from safetensors.torch import save_file

    target.mkdir()
    config = {**json.loads((model / "config.json").read_text()), **LARGE, **HEADS}
    (target / "config.json").write_text(json.dumps(config))
    for path in model.glob("tokenizer*"):
        (target / path.name).write_bytes(path.read_bytes())
    width, inner, kept = LARGE["hidden_size"], LARGE["intermediate_size"], HEADS["num_key_value_heads"] * 64
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for layer in range(LARGE["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        shapes |= {f"{name}{norm}.weight": (width,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{name}self_attn.{each}_proj.weight": (width, width) for each in "qo"}
        shapes |= {f"{name}self_attn.{each}_proj.weight": (kept, width) for each in "kv"}
        shapes |= {f"{name}mlp.{each}_proj.weight": (inner, width) for each in ("gate", "up")}
        shapes |= {f"{name}mlp.down_proj.weight": (width, inner)}
    chance = torch.Generator().manual_seed(1)
    tensors = {name: (torch.randn(shape, generator=chance) * 0.02).bfloat16() for name, shape in shapes.items()}
    file = target / "model.safetensors"
    save_file(tensors, file, {"format": "pt"})
    return file


def read_file(path: Path) -> float:
    """Return the seconds that reading a file takes."""
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(READ):
            pass
    return time.perf_counter() - begun


def forget_file(path: Path) -> None:
    """Have the system drop the file from memory, where it can."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_large(backend: str, model: Path, file: Path) -> dict[str, Any]:
    """Return the seconds of reading a file and of opening a stage on it, both from the disk, and their ratio."""
    found: dict[str, list[float]] = {"read": [], "open": []}
    for _ in range(RUNS):
        forget_file(file)
        found["read"].append(read_file(file))
        forget_file(file)
        found["open"].append(open_stage(backend, model)["seconds"])
    least = {key: round(min(runs), 3) for key, runs in found.items()}
    return {"gigabytes": round(file.stat().st_size / 1e9, 2), **least, "open_by_read": least["open"] / least["read"]}


def measure_backend(backend: str, model: Path) -> dict[str, Any]:
    """Return the times of a start with a backend, by part."""
    module = BACKENDS[backend]["module"]
    return {
        **take_least([start_server(backend, model) for _ in range(RUNS)]),
        "import": take_least([time_process(["-c", f"import {module}.backend"]) for _ in range(RUNS)]),
        "open": take_least([open_stage(backend, model) for _ in range(RUNS)]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure how long a start takes.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS), help="only these")
    parser.add_argument("--large", action="store_true", help="also load a model of two gigabytes, from the disk")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    parts = {name: take_least([time_process(["-c", code]) for _ in range(RUNS)]) for name, code in PARTS.items()}
    found: dict[str, Any] = {"parts": parts}
    for backend in options.backends:
        found[backend] = measure_backend(backend, options.model)
        print(backend, json.dumps(found[backend]), flush=True)
    if options.large:
        with tempfile.TemporaryDirectory() as scratch:
            file = make_large(options.model, Path(scratch) / "large")
            found["large"] = {backend: measure_large(backend, file.parent, file) for backend in options.backends}
    print(json.dumps({key: found[key] for key in found if key not in options.backends}))
    write_report(options.out, {**describe_run(["benchmarks.start", options.model.name], VERSIONS), **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
