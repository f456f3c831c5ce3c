"""Measures which backend is faster on this machine, and so should be the default: decodes and a prompt, in turns.

    python -m benchmarks.backends MODEL_FOLDER --out benchmarks/results/backends.json

Each backend runs in its own process, because their threads would compete, and opens the whole model as
`parallax serve` does. They take turns: decoding a single sequence, decoding eight together, and a prompt of 256 tokens.
The figures are tokens per second in the best turn, and the ratio of `torch` to `mlx`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, write_report
from parallax_core.api import Draw, Drop, Open, Row, Sampling, SeqId, SequenceSpec, Stage, StageBatch, StagePlan

BACKENDS = {"mlx": "parallax_backend_mlx.backend:MlxBackend", "torch": "parallax_backend_torch.backend:TorchBackend"}
BATCHES = (1, 8)
WARM_UP, STEPS, PROMPT, TURNS = 2, 16, 256, 3
MEMORY = 0.05


def decode(stage: Stage, batch: int) -> float:
    """Return the tokens per second of ``batch`` sequences decoded together."""
    spec = SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0))
    stage.edit([Open(SeqId(number), spec) for number in range(batch)])
    begun = 0.0
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            begun = time.perf_counter()
        rows = tuple(Row(SeqId(number), step, (100 + number,), (Draw(0),)) for number in range(batch))
        stage.step(StageBatch(rows, step=step)).wait()
    seconds = time.perf_counter() - begun
    stage.edit([Drop(SeqId(number)) for number in range(batch)])
    return batch * STEPS / seconds


def prefill(stage: Stage) -> float:
    """Return the tokens per second of a prompt, in as few steps as the stage allows."""
    stage.edit([Open(SeqId(0), SequenceSpec(prompt_length=PROMPT, sampling=Sampling(temperature=0)))])
    size = min(PROMPT, stage.info.max_batch_tokens)
    begun = time.perf_counter()
    for start in range(0, PROMPT, size):
        tokens = tuple(range(start, min(start + size, PROMPT)))
        stage.step(StageBatch((Row(SeqId(0), start, tokens),))).wait()
    seconds = time.perf_counter() - begun
    stage.edit([Drop(SeqId(0))])
    return PROMPT / seconds


def serve(name: str, folder: Path) -> None:
    """Measure once for each line of standard input, and write the figures as a line of JSON."""
    module, _, attribute = BACKENDS[name].partition(":")
    stage: Stage = getattr(import_module(module), attribute)().open_stage(
        StagePlan(model=folder, memory_fraction=MEMORY)
    )
    print(json.dumps({"device": stage.info.device, "dtype": stage.info.dtype}), flush=True)
    for _ in sys.stdin:
        found = {f"decode_{batch}": decode(stage, batch) for batch in BATCHES}
        print(json.dumps({**found, "prompt": prefill(stage)}), flush=True)


class BackendProcess:
    """A backend in its own process."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.backends", str(folder), "--serve", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.facts = self._read()

    def measure(self) -> dict[str, float]:
        """Return the figures of one turn, in tokens per second."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not (line := self._process.stdout.readline()).startswith("{"):
            assert line, "the process has ended"
        found: dict[str, Any] = json.loads(line)
        return found


def compare(folder: Path) -> dict[str, Any]:
    """Measure both backends in turns, and return the best figures and their ratios."""
    peers = {name: BackendProcess(name, folder) for name in BACKENDS}
    try:
        turns = [{name: peer.measure() for name, peer in peers.items()} for _ in range(TURNS)]
    finally:
        for peer in peers.values():
            peer.close()
    best = {
        name: {what: round(max(turn[name][what] for turn in turns), 1) for what in turns[0][name]} for name in peers
    }
    ratios = {what: round(best["torch"][what] / best["mlx"][what], 2) for what in best["mlx"]}
    print(json.dumps({"tokens_per_second": best, "torch_to_mlx": ratios}, indent=1))
    return {"tokens_per_second": best, "torch_to_mlx": ratios, "devices": {n: peer.facts for n, peer in peers.items()}}


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=list(BACKENDS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder)
        return
    command = ["benchmarks.backends", given.folder.name]
    write_report(given.out, {**compare(given.folder), **describe_run(command, ["mlx", "torch"])})


if __name__ == "__main__":
    main()
