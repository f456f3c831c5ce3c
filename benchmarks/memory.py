"""Measures the memory of a stage that holds only some layers of a model.

    python benchmarks/memory.py MODEL_FOLDER --stages 3 --out benchmarks/results/memory.json

Opens the whole model and then each of its stages on the MLX backend, each in its own process, and runs one token
through. Prints the resident memory of the process: before the stage is opened, with every library loaded; after the
token; and at its peak, while loading. Linux only.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from parallax_core.api import Draw, LayerRange, Open, Row, Sampling, SeqId, SequenceSpec, StageBatch, StagePlan, Tensor

MEBI = 2**20


def read_memory(field: str) -> int:
    """Return a size in bytes from ``/proc/self/status``: ``VmRSS`` is resident memory, ``VmHWM`` its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def measure_stage(folder: Path, layers: LayerRange | None) -> dict[str, Any]:
    """Open a stage in this process, run a token through it, and return the memory it took, in MiB."""
    from parallax_backend_mlx.backend import MlxBackend
    from parallax_backend_mlx.runtime import mx

    mx.eval(mx.ones((64, 64)) @ mx.ones((64, 64)))
    before = read_memory("VmRSS")
    stage = MlxBackend().open_stage(StagePlan(model=folder, layers=layers))
    info = stage.info
    stage.edit([Open(SeqId(0), SequenceSpec(prompt_length=1, sampling=Sampling(temperature=0)))])
    hidden = tuple(Tensor(spec.dtype, (1, spec.width), bytes(4 * spec.width)) for spec in info.takes)
    row = Row(SeqId(0), 0, (1,), () if info.gives else (Draw(0),))
    stage.step(StageBatch((row,), hidden)).wait()
    after, most = read_memory("VmRSS"), read_memory("VmHWM")
    stage.close()
    return {
        "layers": f"{info.layers.start}-{info.layers.stop}",
        "dtype": info.dtype,
        "device": info.device,
        "weights_mib": round(info.weight_bytes / MEBI, 1),
        "before_mib": round(before / MEBI, 1),
        "after_mib": round(after / MEBI, 1),
        "stage_mib": round((after - before) / MEBI, 1),
        "highest_mib": round(most / MEBI, 1),
    }


def measure_apart(folder: Path, layers: str) -> dict[str, Any]:
    """Run `measure_stage` in a new process, and return its result."""
    command = [sys.executable, __file__, str(folder), "--layers", layers]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare_stages(folder: Path, stages: int) -> dict[str, Any]:
    """Measure the whole model and ``stages`` equal stages, and return the figures."""
    count = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    cuts = [round(count * number / stages) for number in range(stages + 1)]
    whole = measure_apart(folder, f"0-{count}")
    parts = [measure_apart(folder, f"{start}-{stop}") for start, stop in pairwise(cuts)]
    return {
        "model": folder.name,
        "whole": whole,
        "stages": parts,
        "share_of_whole": [round(part["stage_mib"] / whole["stage_mib"], 3) for part in parts],
    }


def read_layers(text: str) -> LayerRange:
    """Parse ``START-STOP``."""
    start, _, stop = text.partition("-")
    return LayerRange(int(start), int(stop))


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--layers", type=read_layers, help="measure only these, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.layers:
        print(json.dumps(measure_stage(options.model, options.layers)))
        return
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    found = {
        **compare_stages(options.model, options.stages),
        "commit": commit.stdout.strip(),
        # Only the name of the folder: its path is specific to one machine.
        "command": f"python benchmarks/memory.py {options.model.name} --stages {options.stages}",
        "machine": {"system": platform.platform(), "python": platform.python_version()},
    }
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
