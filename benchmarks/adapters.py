"""Compares steps of a backend with LoRA adapters and without.

    python -m benchmarks.adapters --out benchmarks/results/adapters.json
    python -m benchmarks.adapters --backend mlx --out benchmarks/results/adapters-mlx.json

Decodes of SmolLM2-135M take turns: ``none`` on a stage that never had an adapter, and on another ``unused`` with eight
adapters in memory, ``one`` with one for all rows, and ``eight`` with eight, interleaved; of rank 8 on all matrices.
Figures are medians of seconds, of the clock and of the processor; ratios are the times of ``none`` by theirs.
``loads`` are the seconds of a prompt of 64 tokens, without an adapter and with one of rank 64 that the stage never had.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, find_model, make_parser, write_report
from parallax_adapters.copies import LAYERS
from parallax_adapters.store import AdapterStore
from parallax_core.api import Draw, LayerRange, Open, Row, Sampling, SeqId, SequenceSpec, Stage, StageBatch, StagePlan
from tests.support.tiny_adapters import list_sizes, make_matrices, write_adapter

BACKENDS = {"torch": "TorchBackend", "mlx": "BroughtMlx"}
WARM, LOADS, ids = 5, 12, count(1)


def step(stage: Stage, rows: list[Row]) -> tuple[float, float]:
    begun = time.perf_counter(), time.process_time()
    stage.step(StageBatch(tuple(rows))).wait()
    return time.perf_counter() - begun[0], time.process_time() - begun[1]


def open_rows(stage: Stage, keys: list[str]) -> list[SeqId]:
    seqs = [SeqId(next(ids)) for _ in keys]
    for seq, key in zip(seqs, keys, strict=True):
        stage.edit([Open(seq, SequenceSpec(prompt_length=64, sampling=Sampling(temperature=0), adapter=key))])
        step(stage, [Row(seq, 0, tuple(range(100, 164)))])
    return seqs


def measure(plain: Stage, adapted: Stage, keys: dict[str, list[str]], rounds: int) -> dict[str, Any]:
    stages = {name: plain if name == "none" else adapted for name in keys}
    seqs = {name: open_rows(stages[name], each) for name, each in keys.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in keys}
    for place in range(64, 64 + WARM + rounds):
        for name, some in seqs.items():
            rows = [Row(seq, place, (500,), (Draw(0, top=0),)) for seq in some]
            taken[name].append(step(stages[name], rows))
    middle = {
        name: [statistics.median(part) for part in zip(*all_[WARM:], strict=True)] for name, all_ in taken.items()
    }
    found = {
        name: {"s": wall, "cpu_s": cpu, "ratio": middle["none"][0] / wall, "cpu_ratio": middle["none"][1] / cpu}
        for name, (wall, cpu) in middle.items()
    }
    return {name: {key: round(value, 4) for key, value in figures.items()} for name, figures in found.items()}


def measure_loads(stage: Stage, model: Path, folder: Path) -> dict[str, Any]:
    pauses: dict[str, list[float]] = {"none": [], "new": []}
    for seed in range(LOADS):
        matrices = make_matrices(list_sizes(model, ("_proj",)), 64, seed, std=0.02)
        key = AdapterStore().add(write_adapter(folder, matrices, r=64, lora_alpha=seed))
        LAYERS.prepare(key)  # as a node does while it fetches the adapter
        for name, each in (("none", ""), ("new", key)):
            begun = time.perf_counter()
            open_rows(stage, [each])
            pauses[name].append(time.perf_counter() - begun)
    return {name: {"s": statistics.median(each), "most_s": max(each)} for name, each in pauses.items()}


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--backend", choices=BACKENDS, default="torch")
    options, model, found = parser.parse_args(), find_model(), dict[str, Any]()
    backend = getattr(import_module(f"tests.support.{options.backend}_backend"), BACKENDS[options.backend])()
    with tempfile.TemporaryDirectory() as home:
        os.environ["PARALLAX_HOME"] = home
        matrices = [make_matrices(list_sizes(model, ("_proj",)), 8, seed, std=0.02) for seed in range(8)]
        keys = [AdapterStore().add(write_adapter(Path(home, "made"), each, r=8)) for each in matrices]
        for dtype in ("bfloat16", "float32"):
            plan = StagePlan(model=model, layers=LayerRange(0, 30), dtype=dtype, memory_fraction=0.1, options={})
            plain, adapted = backend.open_stage(plan), backend.open_stage(plan)
            for rows in (1, 8, 32):
                none, eight = [""] * rows, [keys[row % 8] for row in range(rows)]
                cases = {"none": none, "unused": none, "one": keys[:1] * rows, "eight": eight}
                found[f"{dtype} {rows}"] = measure(plain, adapted, cases, options.rounds)
                print(dtype, rows, found[f"{dtype} {rows}"], flush=True)
            found[f"{dtype} loads"] = measure_loads(adapted, model, Path(home, "made"))
            print(dtype, found[f"{dtype} loads"], flush=True)
            plain.close()
            adapted.close()
    name = options.backend
    command = ["benchmarks.adapters", "--rounds", str(options.rounds), "--backend", name]
    run = describe_run(command, [name, f"parallax-backend-{name}"])
    write_report(options.out, {**found, **run})


if __name__ == "__main__":
    main()
