"""Measures the start of ``parallax serve`` by part, and how fast a large model is loaded.

    python -m benchmarks.start --out benchmarks/results/start.json

``ready`` is the time from the start of the process to the ready line, and ``first_token`` to the first token of a
request sent then. The parts are processes of their own that only do that part; they overlap in a start. Each has its
time and its processor time in seconds, the least of some runs, since other load makes all of them longer. ``large``
opens a stage on random weights of a Llama of about two gigabytes, and compares it with reading the same file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cuda import CONFIG, make_model
from benchmarks.record import describe_run, find_model, make_parser, write_report
from benchmarks.servers import fetch, parallax, read_ready, running

RUNS = 3
PARTS = {
    "python": "pass",
    "command": "import parallax_core.cli.serve",
    "help": "from parallax_core.__main__ import main; import sys; sys.argv = ['parallax', '--help']; main()",
    "server": "import parallax_core.server.app, parallax_core.server.run, parallax_core.server.service",
    "tokenizer": "import parallax_core.server.tokenizer_main",
}
BACKENDS = {"torch": ("parallax_backend_torch", "TorchBackend"), "mlx": ("parallax_backend_mlx", "MlxBackend")}
OPEN = """
import sys, time
from pathlib import Path
from {}.backend import {} as Backend
from parallax_core.api import StagePlan
begun, used = time.perf_counter(), time.process_time()
stage = Backend().open_stage(StagePlan(model=Path(sys.argv[1])))
print(time.perf_counter() - begun, time.process_time() - used)
stage.close()
"""
LARGE = {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "head_dim": 64, "vocab_size": 49152}
LARGE_LAYERS = 20
"""With SmolLM2's vocabulary, 1.1 billion parameters."""
Times = dict[str, float]


def time_process(code: str) -> Times:
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert not process.returncode, code
    return {"seconds": time.perf_counter() - begun, "processor": usage.ru_utime + usage.ru_stime}


def open_stage(backend: str, model: Path) -> Times:
    """Return the times of opening a stage of the whole model, in a new process, without the imports."""
    command = [sys.executable, "-c", OPEN.format(*BACKENDS[backend]), str(model)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(zip(("seconds", "processor"), map(float, said.split()[-2:]), strict=True))


def start_server(backend: str, model: Path) -> Times:
    with running(parallax("serve", str(model), "--backend", backend, "--port", "0")) as process:
        url, name = read_ready(process)
        ready = process.await_line("ready http")[0] - process.begun
        fetch(f"{url}/completions", {"model": name, "prompt": "Once upon a time", "max_tokens": 1})
        return {"ready": ready, "first_token": time.monotonic() - process.begun}


def take_least(run: Callable[[], Times]) -> Times:
    runs = [run() for _ in range(RUNS)]
    return {key: round(min(each[key] for each in runs), 3) for key in runs[0]}


def read_file(path: Path) -> Times:
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(2**24):
            pass
    return {"seconds": time.perf_counter() - begun}


def forget_files(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_large(folder: Path) -> dict[str, Any]:
    """Return the seconds of reading a model's files and of opening a stage on them, both from the disk."""
    make_model(folder, LARGE_LAYERS, "cpu", CONFIG | LARGE)
    files = sorted(folder.glob("*.safetensors"))

    def read() -> Times:
        forget_files(folder)
        return {"seconds": sum(read_file(path)["seconds"] for path in files)}

    def load(backend: str) -> Times:
        forget_files(folder)
        return open_stage(backend, folder)

    opened = {backend: take_least(lambda: load(backend)) for backend in BACKENDS}  # noqa: RUF100
    size = sum(path.stat().st_size for path in files) / 1e9
    return {"gigabytes": round(size, 2), "read": take_least(read), "open": opened}


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__, takes_model=True)
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS), help="only these")
    parser.add_argument("--small", action="store_true", help="leave out the model of two gigabytes")
    options = parser.parse_args()
    model = options.model or find_model()
    found: dict[str, Any] = {"parts": {name: take_least(lambda: time_process(code)) for name, code in PARTS.items()}}
    for backend in options.backends:
        imports = f"import {BACKENDS[backend][0]}.backend"
        found[backend] = {
            **take_least(lambda: start_server(backend, model)),
            "import": take_least(lambda: time_process(imports)),
            "open": take_least(lambda: open_stage(backend, model)),
        }
    if not options.small:
        with tempfile.TemporaryDirectory() as scratch:
            found["large"] = measure_large(Path(scratch))
    print(json.dumps(found, indent=1))
    write_report(options.out, {**describe_run(["benchmarks.start"], ("torch", "mlx", "parallax-core")), **found})


if __name__ == "__main__":
    main()
