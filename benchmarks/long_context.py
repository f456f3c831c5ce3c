"""Measures long contexts beside vLLM and llama.cpp: prompts, steps behind them, and memory.

    python -m benchmarks.venvs .venv-peers
    python -m benchmarks.long_context MODEL_FOLDER --peers .venv-peers --out benchmarks/results/long-context.json

The model has random weights, the shape of SmolLM2-135M in MODEL_FOLDER, and room for 32,768 tokens; all sides have the
same weights in bfloat16. ``parallax serve`` and vLLM are asked over HTTP, llama.cpp is called directly. A case is one
or eight prompts of random tokens, all at once, and 16 tokens after each: ``ttft_ms`` is the median time to the first
token, ``itl_ms`` the median time between two, and ``memory_bytes`` the memory of the side's processes at the end, less
what they share. ``attention`` has the attention of one layer by itself, beside what reading memory allows.

Parts already in the report are not run again. A side runs alone; 32,768 tokens take minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.long_attention import measure_all
from benchmarks.long_model import FILE, make_long_model
from benchmarks.peer_torch import Environments
from benchmarks.processes import read_fields
from benchmarks.record import describe_run, read_report, write_report
from benchmarks.sides import Side, call_directly, run_turn

CONTEXT = 32768
CONTEXTS = (1024, 8192, CONTEXT)
TOKENS = 16
"""Tokens of each answer."""
CHUNK = 512
WARM = 512
"""Tokens of the prompt that warms a side up."""
SETTLE_S = 10.0
"""Seconds after the start of a side in which it may still start processes."""
IDS = (1000, 40000)
"""The range of token ids in prompts."""
VERSIONS = ("torch", "parallax-backend-torch", "parallax-core")
GROUP = 2
"""The place of the process group among the fields of a process after its name."""


@dataclass(frozen=True)
class Case:
    """Some requests at once, each with a context of ``context`` tokens with its answer."""

    context: int
    requests: int = 1

    @property
    def name(self) -> str:
        """The name of the case in a report."""
        return f"{self.context} tokens, {self.requests}"

    def make_prompts(self) -> list[list[int]]:
        """Return prompts of random tokens."""
        chance = random.Random(self.name)
        return [[chance.randrange(*IDS) for _ in range(self.context - TOKENS)] for _ in range(self.requests)]


SIDES = ("parallax", "parallax, int8 keys and values", "vLLM", "llama.cpp")
ALONE = tuple(map(Case, CONTEXTS))
TOGETHER = (Case(1024, 8), Case(8192, 8))


class Sides:
    """Opens the sides of a comparison.

    Args:
        model: the folder of the model.
        peers: the virtual environments of the rivals.
    """

    def __init__(self, model: Path, peers: Path) -> None:
        self._model, self._where = model, Environments(model, peers)

    def open_ours(self, kv_cache_dtype: str = "auto") -> contextlib.AbstractContextManager[Side]:
        """Start ``parallax serve``."""
        variables = {"PARALLAX_TORCH__KV_CACHE_DTYPE": kv_cache_dtype}
        return self._where.open_ours("bfloat16", "bfloat16", variables=variables)

    def open_vllm(self) -> contextlib.AbstractContextManager[Side]:
        """Start vLLM, with a KV cache that has room for the largest case."""
        return self._where.open_vllm("bfloat16", CONTEXT, cache_gb=2)

    def open_llama(self) -> contextlib.AbstractContextManager[Side]:
        """Start llama.cpp."""
        python = self._where.peers / "llama" / "bin" / "python"
        return call_directly(str(python), "llama", str(self._model / FILE), "BF16", self._where.threads, str(CONTEXT))

    def list_all(self) -> dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Side]], tuple[Case, ...]]]:
        """Return each side by its name, with its cases."""
        both = (*ALONE, *TOGETHER)
        ours, rounded = (self.open_ours, both), (partial(self.open_ours, "int8"), both)
        return dict(zip(SIDES, (ours, rounded, (self.open_vllm, both), (self.open_llama, ALONE)), strict=True))


def measure_memory(group: int) -> int:
    """Return the memory of the processes of a group in bytes; what several share counts once."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if int(read_fields(int(folder.name))[GROUP]) == group:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                found += next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


def measure_case(side: Side, case: Case) -> dict[str, Any]:
    """Return the figures of a case."""
    load = round(os.getloadavg()[0], 1)
    with run_turn(side):
        figures = side.generate(case.make_prompts(), TOKENS)
        memory = measure_memory(side.group)
    speed = (case.context - TOKENS) * 1000 / figures["ttft_ms"] if case.requests == 1 else None
    return {
        **{key: round(value, 2) for key, value in figures.items()},
        **({"prompt_tokens_per_s": round(speed, 1)} if speed else {}),
        "memory_bytes": memory,
        "load": load,
    }


def run_side(
    opened: contextlib.AbstractContextManager[Side], cases: Sequence[Case]
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Start a side, run its cases, and yield the report of each."""
    with opened as side:
        with run_turn(side):
            time.sleep(SETTLE_S)
            side.generate([list(range(IDS[0], IDS[0] + WARM))], 4)
        for case in cases:
            yield case, {"about": dict(side.about), **measure_case(side, case)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts missing from the report, print, and write it; return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="the folder of a Llama, whose shape and tokenizer are used")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="the folder `benchmarks.venvs` filled")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="run only these")
    parser.add_argument("--contexts", nargs="+", type=int, default=list(CONTEXTS), help="run only these")
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 8], help="run only cases of so many requests")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    chosen = {Case(context, requests) for context in options.contexts for requests in options.requests}
    report = read_report(options.out)
    parts: dict[str, Any] = report.get("parts", {})
    about = describe_run(["benchmarks.long_context", options.model.name], VERSIONS)

    def note(name: str, found: dict[str, Any]) -> None:
        parts[name] = {"commit": about["commit"], "machine": about["machine"], **found}
        write_report(options.out, {**about, "parts": parts})
        print(f"{name}: { {key: value for key, value in found.items() if key != 'about'} }", flush=True)

    if "attention" not in parts:
        contexts = tuple(options.contexts)
        note("attention", {"load": round(os.getloadavg()[0], 1), "cases": dict(measure_all(contexts, CHUNK))})
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "smollm2-long"
        make_long_model(options.model, model, CONTEXT)
        for name, (open_side, cases) in Sides(model, options.peers).list_all().items():
            missing = [case for case in cases if f"{name}: {case.name}" not in parts]
            wanted = [case for case in missing if case in chosen]
            if name in options.sides and wanted:
                for case, found in run_side(open_side(), wanted):
                    note(f"{name}: {case.name}", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
