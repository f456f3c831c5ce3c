"""Compares steps of the torch backend with LoRA adapters and without.

    python -m benchmarks.adapters --out benchmarks/results/adapters.json

Decodes of SmolLM2-135M take turns: ``none`` on a stage that never had an adapter, and on another ``unused`` with eight
adapters in memory, ``one`` with one for all rows, and ``eight`` with eight, interleaved; of rank 8 on all matrices.
Figures are medians of seconds, of the clock and of the processor; ratios are the times of ``none`` by theirs.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.record import describe_run, find_model, make_parser, write_report
from parallax_adapters.store import AdapterStore
from parallax_core.api import Draw, LayerRange, Open, Row, Sampling, SeqId, SequenceSpec, Stage, StageBatch, StagePlan
from tests.support.tiny_adapters import list_sizes, make_matrices, write_adapter
from tests.support.torch_backend import TorchBackend

WARM, ids = 5, count(1)


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


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    options, model, found = parser.parse_args(), find_model(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as home:
        os.environ["PARALLAX_HOME"] = home
        matrices = [make_matrices(list_sizes(model, ("_proj",)), 8, seed, std=0.02) for seed in range(8)]
        keys = [AdapterStore().add(write_adapter(Path(home, "made"), each, r=8)) for each in matrices]
        for dtype in ("bfloat16", "float32"):
            plan = StagePlan(model=model, layers=LayerRange(0, 30), dtype=dtype, memory_fraction=0.1, options={})
            plain, adapted = TorchBackend().open_stage(plan), TorchBackend().open_stage(plan)
            for rows in (1, 8, 32):
                none, eight = [""] * rows, [keys[row % 8] for row in range(rows)]
                cases = {"none": none, "unused": none, "one": keys[:1] * rows, "eight": eight}
                found[f"{dtype} {rows}"] = measure(plain, adapted, cases, options.rounds)
                print(dtype, rows, found[f"{dtype} {rows}"], flush=True)
            plain.close()
            adapted.close()
    run = describe_run(["benchmarks.adapters", "--rounds", str(options.rounds)], ["torch", "parallax-backend-torch"])
    write_report(options.out, {**found, **run})


if __name__ == "__main__":
    main()
