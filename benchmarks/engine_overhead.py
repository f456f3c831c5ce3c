"""Measures what Parallax costs beside bare vLLM: `parallax serve --backend vllm` and vLLM's own server, in turns.

    python -m benchmarks.engine_overhead MODEL_FOLDER --python PYTHON --out benchmarks/results/engine-overhead.json

PYTHON is the interpreter of an environment with vLLM, such as the one that `parallax engines install vllm` makes. Both
servers run at the same time with equal settings on a CPU (eager, the same threads, executor, KV cache and limits; by
default, vLLM's server would compute in a process beside its scheduler on a CPU); only one gets requests at a time, and
the first of each pair alternates. A pair sends the same prompts to both: 1, 8 or 32 requests at once, of 128 tokens,
with answers of 64. A ratio above 1 means that Parallax is better; the interval of the median is that of the second
smallest to the second largest pair, which covers it in 93 of 100 cases with eight pairs. CPU seconds are those of each
kind of process during the turns. Pairs already in the report are not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peer_torch import Case, make_prompts, read_versions
from benchmarks.processes import list_processes, read_cpu_s
from benchmarks.record import count_cores, describe_run, read_report, write_report
from benchmarks.sides import Figures, HttpSide, serve

CASES = {"1": Case(1, 128, 64), "8": Case(8, 128, 64), "32": Case(32, 128, 64)}
PAIRS = 8
KV_GB = 1
LENGTH, RUNNING, BATCH = 2048, 64, 2048
"""The longest sequence, the most running requests, and the most tokens in a step, of both sides."""
KINDS = ("server", "worker", "engine")
"""Processes of Parallax: the HTTP server, the worker with vLLM's client, and vLLM's engine. Of vLLM, no worker."""
MIN_CPU_S = 0.01
"""The resolution of CPU times, in seconds."""


@dataclass(frozen=True)
class Setup:
    """The model, the interpreter with vLLM, and the settings of both sides."""

    model: Path
    python: Path
    dtype: str

    @property
    def threads(self) -> int:
        """The threads that compute: one core is left to everything else."""
        return max(1, count_cores() - 1)

    def ours(self) -> list[str]:
        """Return the command of `parallax serve`."""
        options = {"max_model_len": LENGTH, "kv_cache_gb": KV_GB, "threads": self.threads}
        command = [str(Path(sys.executable).with_name("parallax")), "serve", str(self.model), "--backend", "vllm"]
        command += ["--python", f"vllm={self.python}", "--dtype", self.dtype, "--max-running", str(RUNNING)]
        command += ["--set", f"max_batch_tokens={BATCH}"]
        return command + [word for name, value in options.items() for word in ("--backend-option", f"{name}={value}")]

    def theirs(self) -> list[str]:
        """Return the command of vLLM's server."""
        options = {
            "served-model-name": self.model.name,
            "dtype": self.dtype,
            "max-model-len": LENGTH,
            "max-num-seqs": RUNNING,
            "max-num-batched-tokens": BATCH,
            "kv-cache-memory-bytes": KV_GB * 10**9,
            "distributed-executor-backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
        }
        command = [str(self.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        command += ["--enforce-eager", "--scheduling-policy", "priority"]
        return command + [word for name, value in options.items() for word in (f"--{name}", str(value))]

    def variables(self) -> dict[str, str]:
        """Return the environment of vLLM's server: what the backend sets for its own."""
        library = next(self.python.parent.parent.glob("lib/libiomp5.so"), None) or self._find_openmp()
        return {
            "OMP_NUM_THREADS": str(self.threads),
            "KMP_BLOCKTIME": "1",
            "LD_PRELOAD": str(library or ""),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_PLUGINS": "",
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }

    def _find_openmp(self) -> str:
        """Return Intel's OpenMP as the backend finds it in the environment."""
        script = (
            "import sys; from pathlib import Path; from parallax_backend_vllm.environ import find_openmp;"
            "print(find_openmp([Path(sys.prefix), *map(Path, sys.path)]) or '')"
        )
        found = subprocess.run([str(self.python), "-P", "-c", script], capture_output=True, text=True, check=True)
        return found.stdout.strip()


def find_kind(pid: int) -> str:
    """Return the kind of a process, see `KINDS`."""
    if Path(f"/proc/{pid}/comm").read_text().startswith("VLLM::"):
        return "engine"
    return "worker" if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") else "server"


def read_cpu(pid: int) -> dict[str, float]:
    """Return the CPU seconds that the processes of a side have used so far, by kind."""
    found = dict.fromkeys(KINDS, 0.0)
    for each in list_processes(pid):
        found[find_kind(each)] += read_cpu_s(each)
    return found


def run_side(side: HttpSide, prompts: Sequence[Sequence[int]], tokens: int) -> Figures:
    """Return the figures of one turn of a side, with its CPU seconds by kind of process."""
    before = read_cpu(side.group)
    figures = side.generate(prompts, tokens)
    after = read_cpu(side.group)
    cpu = {f"cpu_{kind}_s": after[kind] - before[kind] for kind in KINDS}
    return {key: round(value, 3) for key, value in {**figures, **cpu}.items()}


def judge(pairs: Sequence[Mapping[str, Figures]]) -> dict[str, Any]:
    """Return the ratios with their intervals, CPU seconds, and those of Parallax as shares of its engine's."""
    ratios: dict[str, Any] = {}
    for key in ("tokens_per_s", "ttft_ms", "itl_ms"):
        found = sorted(
            pair["ours"][key] / pair["theirs"][key]
            if key.endswith("per_s")
            else pair["theirs"][key] / pair["ours"][key]
            for pair in pairs
        )
        low, high = (found[1], found[-2]) if len(found) > 3 else (found[0], found[-1])
        ratios[key] = {"median": round(statistics.median(found), 3), "interval": [round(low, 3), round(high, 3)]}
    cpu = {
        side: {kind: round(sum(pair[side][f"cpu_{kind}_s"] for pair in pairs), 2) for kind in KINDS}
        for side in ("ours", "theirs")
    }
    ours = cpu["ours"]
    shares = {kind: round(ours[kind] / max(ours["engine"], MIN_CPU_S), 4) for kind in KINDS[:-1]}
    return {"ratios": ratios, "cpu_s": cpu, "shares_of_engine": shares}


def run_pair(sides: Mapping[str, HttpSide], setup: Setup, case: Case, number: int) -> dict[str, Figures]:
    """Send the same prompts to both sides, one after the other."""
    prompts = make_prompts(setup.model, case, number)
    order = sorted(sides, reverse=number % 2 == 0)
    return {name: run_side(sides[name], prompts, case.output) for name in order}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the pairs missing from the report, print, and write it; return the exit code."""
    parser = argparse.ArgumentParser(description="Measure what Parallax costs beside bare vLLM.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of an environment with vLLM")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="numbers of requests")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    setup, report = Setup(options.model, options.python.absolute(), options.dtype), read_report(options.out)
    cases: dict[str, Any] = report.get("cases", {})
    if all(len(cases.get(case, {}).get("pairs", ())) >= options.pairs for case in options.cases):
        return 0
    name = options.model.name
    with serve(setup.ours(), name, {}, {}) as ours, serve(setup.theirs(), name, setup.variables(), {}) as theirs:
        sides = {"ours": ours, "theirs": theirs}
        for case in options.cases:
            pairs: list[Any] = cases.setdefault(case, {"pairs": []})["pairs"]
            run_pair(sides, setup, CASES[case], -1)  # warms both up
            while len(pairs) < options.pairs:
                pairs.append(run_pair(sides, setup, CASES[case], len(pairs) + 1))
                cases[case] |= judge(pairs)
                about = {"settings": {"dtype": options.dtype, "threads": setup.threads}, "cases": cases}
                run = describe_run(["benchmarks.engine_overhead", name, "--dtype", setup.dtype], ("parallax-core",))
                run["versions"] |= read_versions(setup.python, ["vllm-cpu"])
                write_report(options.out, {**run, **about})
            print(f"{case} requests: {cases[case]['ratios']}, CPU seconds {cases[case]['cpu_s']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
