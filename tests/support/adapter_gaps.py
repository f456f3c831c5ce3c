"""Measures how long a stream stops while LoRA adapters are loaded.

    python -m tests.support.adapter_gaps --backend mlx --dtype float32

One stream without an adapter decodes SmolLM2-135M on a stage, alone, and while ten adapters of rank 64 on all matrices
are loaded one after the other on another thread, as a node does; each is then tried for a token, as a server does.
Printed are the median and the longest time between two tokens, with the load of the machine: run it when that is quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from importlib import import_module
from itertools import count
from pathlib import Path
from queue import Queue
from threading import Thread

from benchmarks.record import find_model
from parallax_adapters.copies import LAYERS
from parallax_adapters.store import AdapterStore
from parallax_core.api import (
    Draw,
    Drop,
    LayerRange,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
)
from tests.support.tiny_adapters import list_sizes, make_matrices, write_adapter

BACKENDS = {"torch": "TorchBackend", "mlx": "BroughtMlx"}
LOADS, RANK, ALONE, PROMPT = 10, 64, 80, 64


class Stream:
    """A stream without an adapter, and the gaps between its tokens."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self._places, self._tried = stage, count(PROMPT), count(2)
        self._open(SeqId(1), PROMPT, "")
        self._step([Row(SeqId(1), 0, tuple(range(100, 100 + PROMPT)))])

    def decode(self, key: str) -> float:
        """Decode a token, and try an adapter for one if a key is given; return the seconds."""
        begun, rows = time.perf_counter(), [Row(SeqId(1), next(self._places), (500,), (Draw(0, top=0),))]
        if key:
            tried = SeqId(next(self._tried))
            self._open(tried, 1, key)
            rows.append(Row(tried, 0, (0,), (Draw(0, top=0),)))
        self._step(rows)
        self._stage.edit([Drop(row.seq) for row in rows[1:]])
        return time.perf_counter() - begun

    def _open(self, seq: SeqId, length: int, key: str) -> None:
        spec = SequenceSpec(prompt_length=length, sampling=Sampling(temperature=0), adapter=key)
        self._stage.edit([Open(seq, spec)])

    def _step(self, rows: list[Row]) -> None:
        self._stage.step(StageBatch(tuple(rows))).wait()


def measure(stage: Stage, keys: list[str]) -> dict[str, list[float]]:
    """Return the gaps of a stream, alone and while adapters are loaded."""
    stream, ready = Stream(stage), Queue[str]()

    def load() -> None:
        for key in keys:
            LAYERS.prepare(key)
            ready.put(key)

    alone, loading = [stream.decode("") for _ in range(ALONE)], list[float]()
    thread = Thread(target=load)
    thread.start()
    while thread.is_alive() or ready.qsize():
        loading.append(stream.decode(ready.get_nowait() if ready.qsize() else ""))
    return {"alone": alone, "loading": loading}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=BACKENDS, default="mlx")
    parser.add_argument("--dtype", default="float32")
    options, model = parser.parse_args(), find_model()
    backend = getattr(import_module(f"tests.support.{options.backend}_backend"), BACKENDS[options.backend])()
    with tempfile.TemporaryDirectory() as home:
        os.environ["PARALLAX_HOME"] = home
        sizes = list_sizes(model, ("_proj",))
        made = [make_matrices(sizes, RANK, seed, std=0.02) for seed in range(LOADS)]
        keys = [AdapterStore().add(write_adapter(Path(home, "made"), each, r=RANK)) for each in made]
        plan = StagePlan(model=model, layers=LayerRange(0, 30), dtype=options.dtype, memory_fraction=0.1, options={})
        stage = backend.open_stage(plan)
        gaps = measure(stage, keys)
        stage.close()
    found = {name: {"median_s": statistics.median(each), "most_s": max(each)} for name, each in gaps.items()}
    print(json.dumps({"backend": options.backend, "dtype": options.dtype, "load": os.getloadavg()[0], **found}))


if __name__ == "__main__":
    main()
