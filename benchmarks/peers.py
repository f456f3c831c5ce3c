"""Runs servers and libraries side by side, with the same weights and prompts, in turns.

    python -m benchmarks.peers torch --peers .venv-peers --sglang PYTHON --out benchmarks/results/peer-torch.json
    python -m benchmarks.peers base --base OTHER_CHECKOUT --out FILE

``torch``: the torch backend on a CPU beside vLLM, SGLang, llama.cpp, and itself with fewer bits. All have
one GGUF file in Q4_1, which llama.cpp's quantizer converts once for other formats. ``gguf``: the same file on both
sides, ours and llama.cpp; ten minutes. ``mlx``: the MLX backend beside `mlx_lm.server`, in float32 and on the same
BLAS. ``even``: the default limit on prompts beside running answers, and none. ``long``: contexts of up to 32,768
tokens, with random weights. ``base``: this checkout beside another one, also with answers under a JSON schema.

One client sends the requests of a case to one side at a time, over HTTP; llama.cpp (one static batch) is called
directly. A side that is not its turn is stopped by a signal: one that spins while it waits would take
processor time from the other. Figures are medians over the turns; a ratio above 1 means that the first side is better.
``itl_ratio`` is the 99th percentile of the time between tokens divided by its median, ``cpu_ms`` the processor time of
all processes of a side per token, ``memory_bytes`` their memory at the end, less what they share. Parts already in the
report are not run again; each takes a few minutes.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.long import CONTEXT, make_long_model, measure_attention_all
from benchmarks.processes import list_processes, measure_memory, read_cpu_s
from benchmarks.record import PARALLAX, describe_run, find_model, make_parser, read_report, write_report
from benchmarks.side_openers import Environments
from benchmarks.sides import Figures, Request, Side, run_turn
from parallax_backend_torch.kernels import library

TURNS, LONG_ENOUGH_S = 3, 45
IDS = 1000, 40000
"""The range of the token ids of prompts."""
WARM, WARM_OUTPUT = 16, 4
"""Tokens of the prompts and of the answers of the warm-up."""
ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 3, "maxLength": 30}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
SCHEMA = {"structured_outputs": {"json": {"type": "array", "items": ITEM, "minItems": 50}}}
"""Answers under it take as many tokens as they may."""
VERSIONS = ("torch", "mlx", "mlx-lm", "parallax-core")
Opener = partial[AbstractContextManager[Side]]


@dataclass(frozen=True)
class Case:
    """The number of requests at once, their prompt and output lengths in tokens, and further fields."""

    requests: int = 1
    prompt: int = 128
    output: int = 128
    arriving: int = 0
    """Further requests of other lengths, one of which follows each that has ended."""
    shared: bool = False
    """Whether the prompts are the same in each turn, but for their last words."""
    fields: Mapping[str, Any] = field(default_factory=dict)


CASES = {"1": Case(), "8": Case(8), "32": Case(32), "prompt": Case(prompt=512, output=1)}
AT_ONCE = {
    "1 at once": Case(1, 160, 64),
    "8 at once": Case(8, 160, 64),
    "shared beginning": Case(1, 1200, 4, shared=True),
}
STEADY = {str(count): Case(count, 330, 96, arriving=3 * count) for count in (1, 2, 8, 32)}
BASE = {str(count): Case(count, 128, 64) for count in (1, 8, 32)}
BASE |= {f"schema, {count}": Case(count, 16, 96, fields=SCHEMA) for count in (8, 32)}


@dataclass(frozen=True)
class Contest:
    """Sides by name, the first of which the others are compared with, and the cases."""

    sides: Mapping[str, Opener]
    cases: Mapping[str, Case]
    levels: Sequence[str] = ()
    """Sides with kernels for older instruction sets, which are compared with the second side, too."""


def list_torch(where: Environments) -> dict[str, Contest]:
    native = library.find_library()
    older = [] if native is None else library.list_isas(native)[:-1]

    def contest(weights: str, theirs: Opener, cases: str, levels: Sequence[str] = ()) -> Contest:
        dtype = "float32" if weights == "float32" else "bfloat16"
        kept = [level for level in levels if level in older]
        sides = {"ours": partial(where.open_ours, dtype, weights), "theirs": theirs}
        sides |= {level: partial(where.open_ours, dtype, weights, level) for level in kept}
        return Contest(sides, {name: CASES[name] for name in cases.split()}, kept)

    return {
        "float32 against vLLM": contest("float32", partial(where.open_vllm, "float32"), "1 8 32 prompt", ["avx2"]),
        "bfloat16 against vLLM": contest(
            "bfloat16", partial(where.open_vllm, "bfloat16"), "1 8 32 prompt", ["avx2", "avx512"]
        ),
        "int4 against llama.cpp Q4_0": contest("int4", partial(where.call_llama, "Q4_0"), "1 prompt"),
        "int4 against llama.cpp Q4_1": contest("int4", partial(where.call_llama, "Q4_1"), "1 prompt"),
        "int8 against llama.cpp Q8_0": contest("int8", partial(where.call_llama, "Q8_0"), "1 prompt"),
        "float32 against SGLang": contest("float32", partial(where.open_sglang, "float32"), "1 8 prompt"),
    }


def list_mlx(where: Environments) -> dict[str, Contest]:
    """Return the contests of the MLX backend: with the default limit on prompts, and without."""
    ours = partial(where.open_command, "--backend", "mlx", "--dtype", "float32")
    return {
        f"float32, MLX on a CPU{title} against mlx_lm.server": Contest(
            {"ours": partial(ours, *more), "theirs": partial(where.open_mlx_lm)}, AT_ONCE
        )
        for title, more in (("", ()), (", prompts without a limit (`--set target_itl=0`)", ("--set", "target_itl=0")))
    }


def list_even(where: Environments) -> dict[str, Contest]:
    setups = {
        "torch": ("--backend", "torch"),
        "mlx": ("--backend", "mlx", "--dtype", "float32"),
        "torch-2": ("--backend", "torch", "--stages", "2"),
        "torch-3": ("--backend", "torch", "--stages", "3"),
    }
    return {
        name: Contest(
            {
                "even": partial(where.open_command, *words),
                "any": partial(where.open_command, *words, "--set", "target_itl=0"),
            },
            STEADY,
        )
        for name, words in setups.items()
    }


def list_long(where: Environments) -> dict[str, Contest]:
    lengths = {
        f"{size} tokens, {count}": Case(count, size - 16, 16) for count in (1, 8) for size in (1024, 8192, CONTEXT)
    }
    both = {name: case for name, case in lengths.items() if (case.requests, case.prompt) != (8, CONTEXT - 16)}
    alone = {name: case for name, case in lengths.items() if case.requests == 1}
    ours = partial(where.open_ours, "bfloat16", "bfloat16")
    rounded = partial(where.open_ours, "bfloat16", "bfloat16", variables={"PARALLAX_TORCH__KV_CACHE_DTYPE": "int8"})
    return {
        "parallax": Contest({"": ours}, both),
        "parallax, int8 keys and values": Contest({"": rounded}, both),
        "vLLM": Contest({"": partial(where.open_vllm, "bfloat16", CONTEXT, cache_gb=2)}, both),
        "llama.cpp": Contest({"": partial(where.call_llama, "BF16", CONTEXT)}, alone),
    }


def list_gguf(where: Environments) -> dict[str, Contest]:
    """Return the contests over the same files: SmolLM2, and three layers of Llama 3.2 of 1B, random."""
    files = {"SmolLM2": ("Q4_0", "Q4_1", "Q8_0"), "1B": ("Q4_K_M", "Q4_0", "Q8_0")}
    cases = {f"{size} tokens, {count}": Case(count, size - 32, 32) for size in (512, 4096) for count in (1, 8)}
    return {
        f"{model} in {name}": Contest(
            {"ours": partial(where.open_gguf, name, model), "theirs": partial(where.call_llama, name, 4096, 8, model)},
            cases,
        )
        for model, names in files.items()
        for name in names
    }


def list_contests(suite: str, where: Environments, base: Path | None) -> dict[str, Contest]:
    listed = {"torch": list_torch, "mlx": list_mlx, "even": list_even, "long": list_long, "gguf": list_gguf}
    if suite in listed:
        return listed[suite](where)
    checkouts = {"ours": Path(PARALLAX), "base": (base or Path()) / ".venv-dev/bin/parallax"}
    return {
        backend: Contest(
            {name: partial(where.open_program, path, "--backend", backend) for name, path in checkouts.items()}, BASE
        )
        for backend in ("torch", "mlx")
    }


def make_requests(case: Case, turn: int) -> list[Request]:
    chance = random.Random(f"{case.requests} {case.prompt} {0 if case.shared else turn}")

    def draw(tokens: int) -> list[int]:
        return chance.choices(range(*IDS), k=tokens)

    made = [Request(draw(case.prompt), case.output, case.fields) for _ in range(case.requests)]
    if case.shared:
        made[0] = replace(made[0], prompt=[*made[0].prompt[:-8], *range(1000 + 8 * turn, 1008 + 8 * turn)])
    for _ in range(case.arriving):  # beside a single answer, only prompts arrive
        share = chance.uniform(0.5, 1.5)
        made.append(Request(draw(int(case.prompt * share)), int(case.output * share), case.fields))
    return made


def run_case(side: Side, case: Case, requests: Sequence[Request]) -> Figures:
    pids = list(list_processes(side.group))
    before = {pid: read_cpu_s(pid) for pid in pids}
    figures = side.generate(requests, case.requests)
    tokens = sum(request.tokens for request in requests)
    figures["cpu_ms"] = 1000 * sum(read_cpu_s(pid) - before[pid] for pid in pids) / tokens
    figures["memory_bytes"] = measure_memory(side.group)
    if len(requests) == 1:
        figures["prompt_tokens_per_s"] = 1000 * case.prompt / figures["ttft_ms"]
    if case.output == 1:
        figures.pop("tokens_per_s")
    if "itl_ms" in figures:
        figures["itl_ratio"] = figures["itl_p99"] / figures["itl_ms"]
    return {key: round(value, 3) for key, value in figures.items()}


def take_turns(sides: Mapping[str, Side], case: Case, turns: int) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {name: [] for name in sides}
    begun = time.perf_counter()
    for turn in range(turns + 1):
        for name in sorted(sides, reverse=bool(turn % 2)):
            with run_turn(sides[name]):
                requests = make_requests(case, turn)
                if turn:
                    found[name].append(run_case(sides[name], case, requests))
                else:
                    warm = [
                        replace(each, prompt=each.prompt[:WARM], tokens=WARM_OUTPUT, fields={}) for each in requests
                    ]
                    sides[name].generate(warm, case.requests)
        if turn and time.perf_counter() - begun > LONG_ENOUGH_S:
            break
    return found


def judge(turns: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """Return the medians, the ratios of the first side to each other, and the figures of every turn."""
    medians = {
        name: {key: round(statistics.median(turn[key] for turn in each), 3) for key in each[0]}
        for name, each in turns.items()
    }
    first, *others = medians
    ratios = {other: compare(medians[first], medians[other]) for other in others}
    shown = next(iter(ratios.values())) if len(ratios) == 1 else ratios
    return {"medians": medians, "ratios": shown, "turns": turns}


def compare(ours: Figures, theirs: Figures) -> Figures:
    shared = [key for key in ours if ours[key] and theirs.get(key)]
    return {
        key: round(ours[key] / theirs[key] if key.endswith("per_s") else theirs[key] / ours[key], 3) for key in shared
    }


def run_contest(contest: Contest, cases: Mapping[str, Case], turns: int) -> Iterator[tuple[str, dict[str, Any]]]:
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, opener in contest.sides.items():
            sides[name] = stack.enter_context(opener())
            with run_turn(sides[name]):
                pass
        for name, case in cases.items():
            load = round(os.getloadavg()[0], 1)
            found = take_turns(sides, case, turns)
            if len(sides) == 1:
                [side], [figures] = sides.values(), judge(found)["medians"].values()
                yield name, {"about": dict(side.about), "load": load, **figures}
                continue
            names = list(sides)
            for each in (names[0], *contest.levels):
                pair = {
                    names[0]: found[each],
                    **{other: found[other] for other in names[1:] if other not in contest.levels},
                }
                about = {
                    names[0]: sides[each].about,
                    **{other: sides[other].about for other in pair if other != names[0]},
                }
                title = name if each == names[0] else f"{name}, {each}"
                yield title, {"sides": about, "load": load, **judge(pair)}


@contextmanager
def prepare(suite: str, model: Path) -> Iterator[Path]:
    if suite not in {"long", "mlx"}:
        yield model
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "smollm2"
        if suite == "long":
            make_long_model(model, folder, CONTEXT)
        else:
            store_floats(model, folder)
        yield folder


def store_floats(folder: Path, target: Path) -> None:
    """Copy a model folder with its weights in float32, and a config.json that mlx-lm reads correctly."""
    import shutil

    from parallax_backend_mlx.runtime import mx

    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    weights: dict[str, mx.array] = {}
    for path in folder.glob("*.safetensors"):
        loaded: Any = mx.load(str(path))
        weights |= {name: array.astype(mx.float32) for name, array in loaded.items()}
    mx.save_safetensors(str(target / "model.safetensors"), weights, {"format": "pt"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts missing from the report, print, and write it; return the exit code."""
    parser = make_parser(__doc__, takes_model=True)
    parser.add_argument("suite", choices=("torch", "mlx", "even", "long", "gguf", "base"))
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="the folder `benchmarks.venvs` filled")
    parser.add_argument(
        "--sglang", type=Path, default=Path("python"), help="the interpreter of an environment with SGLang"
    )
    parser.add_argument("--base", type=Path, help="another checkout, with its .venv-dev")
    parser.add_argument("--only", nargs="+", default=[], help="only parts whose names contain one of these")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args(arguments)
    report, real = read_report(options.out), options.model or find_model()
    parts: dict[str, Any] = report.get("parts", {})
    run = describe_run(["benchmarks.peers", options.suite], VERSIONS)

    def note(name: str, found: Mapping[str, Any]) -> None:
        parts[name] = {"commit": run["commit"], "machine": run["machine"], **found}
        write_report(options.out, {**run, "parts": parts})
        print(name, {key: value for key, value in found.items() if key not in {"turns", "sides", "about"}}, flush=True)

    if options.suite == "long" and "attention" not in parts and not options.only:
        note("attention", {"load": round(os.getloadavg()[0], 1), "cases": dict(measure_attention_all())})
    with prepare(options.suite, real) as model:
        where = Environments(model, options.peers, options.sglang)
        for title, contest in list_contests(options.suite, where, options.base).items():
            missing = {name: case for name, case in contest.cases.items() if f"{title}: {name}" not in parts}
            wanted = {
                name: case
                for name, case in missing.items()
                if not options.only or any(each in f"{title}: {name}" for each in options.only)
            }
            for name, found in run_contest(contest, wanted, options.turns) if wanted else ():
                note(f"{title}: {name}", found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
