"""Checks the MLX backend on this Mac, and prints a report to paste into an issue: `make mac-check`.

    python -m benchmarks.mac_check MODEL_FOLDER --out build/mac-check.md

It runs the tests of the backend, with the kernel on Metal against the gathered computation, token parity with
transformers, and the speed beside `mlx_lm.server`. Each part runs in a process of its own, so that one that fails
leaves the others; nothing is sent anywhere. On a machine without Metal it runs too, and says so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 1800
LAST_LINES = 25
PARTS: dict[str, tuple[str, Sequence[str]]] = {
    "machine": ("The machine", ["-m", "parallax_core", "doctor"]),
    "tests": ("Tests of the backend", ["-m", "pytest", "-q", "-p", "no:cacheprovider", "plugins/backend_mlx"]),
    "parity": ("Tokens beside transformers", ["-m", "benchmarks.parity", "stage", "--model", "{}"]),
    "server": ("Speed beside mlx_lm.server", ["-m", "benchmarks.peers", "mlx", "--model", "{}"]),
    "start": ("Time to start", ["-m", "benchmarks.start", "--model", "{}", "--backends", "mlx", "--small"]),
}
"""The title of each part of the report, and the arguments of Python that print it; ``{}`` is the model."""


def run_part(title: str, arguments: Sequence[str]) -> str:
    print(f"running: {title} ...", file=sys.stderr, flush=True)
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        state, lines = f"exit code {done.returncode}", (done.stdout + done.stderr).splitlines()
    except subprocess.TimeoutExpired:
        state, lines = f"no end within {TIMEOUT_S} s", []
    shown = "\n".join(line[:300] for line in lines[-LAST_LINES:])
    return f"## {title}: {state}, {time.perf_counter() - begun:.0f} s\n\n```\n{shown}\n```\n"


def main() -> None:
    """Run the parts, print the report and write it."""
    parser = argparse.ArgumentParser(description="Check the MLX backend on a Mac.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--out", type=Path, default=Path("build/mac-check.md"), help="where to write the report")
    options = parser.parse_args()
    runs = [
        (title, [str(options.model) if word == "{}" else word for word in words]) for title, words in PARTS.values()
    ]
    report = "\n".join(["# Report of `make mac-check`\n", *(run_part(*run) for run in runs)])
    print(report)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(report, encoding="utf-8")
    print(f"written to {options.out}: paste it into an issue", file=sys.stderr)


if __name__ == "__main__":
    main()
