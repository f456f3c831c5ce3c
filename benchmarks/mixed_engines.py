"""Compares the greedy tokens of pipelines of several engines with those of the whole model on torch, in float32.

    python -m benchmarks.mixed_engines MODEL_FOLDER --python vllm=PYTHON --python sglang=PYTHON --out FILE

Each pipeline is a `parallax serve` with a stage of each named backend, in worker processes, each in its own
environment: ``--python`` names the interpreter with a backend's engine, and is not needed for one that `parallax
engines install` has made. All prompts are sent at once. Where tokens differ, the margin of the best token is reported:
two correct programs may order nearly equal logits differently. Exits with 1 if a pipeline differs on more than one
prompt, or at a margin of 1e-3 or more. Pipelines already in the report are not run again; each
has the commit and the load of its own run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.margins import TOKENS, Answer, ask_greedily, find_margin
from benchmarks.parity import MAX_DIFFERING, MAX_GAP, PROMPTS
from benchmarks.record import describe_run, read_report, write_report
from benchmarks.sides import serve
from parallax_core.api import count_layers, read_config

WHOLE = "torch"
PIPELINES = (
    "vllm",
    "vllm,vllm",
    "vllm,vllm,vllm",
    "torch,vllm",
    "vllm,mlx,torch",
    "sglang",
    "sglang,sglang",
    "sglang,sglang,sglang",
    "mlx,sglang",
    "sglang,vllm",
)
"""The backends of the stages, in order."""
PACKAGES = ("torch", "parallax-core")


def cut_layers(num_layers: int, num_stages: int) -> str:
    """Return the layers of stages of about equal size, as in ``0-15,15-30``."""
    bounds = [num_layers * stage // num_stages for stage in range(num_stages + 1)]
    return ",".join(f"{start}-{stop}" for start, stop in itertools.pairwise(bounds))


def run_pipeline(options: argparse.Namespace, pipeline: str, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Serve the model by a pipeline; return its answers, and the devices of its stages."""
    model, backends = options.model, pipeline.split(",")
    command = [str(Path(sys.executable).with_name("parallax")), "serve", str(model), "--dtype", "float32"]
    command += ["--backend", pipeline if len(set(backends)) > 1 else backends[0], "--set", "memory_fraction=0.1"]
    command += ["--layers", cut_layers(count_layers(read_config(model)) or 1, len(backends))]
    for python in options.python:
        command += ["--python", python] if python.partition("=")[0] in backends else []
    with serve(command, model.name, {}, {}) as side, ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(partial(ask_greedily, side.target.url, model.name), prompts))
        with urllib.request.urlopen(f"{side.target.url}/v1/cluster") as response:
            [replica] = json.load(response)["replicas"]
    return {"answers": answers, "devices": [stage["device"] for stage in replica["stages"]]}


def compare_answers(found: Sequence[Answer], expected: Sequence[Answer]) -> dict[str, Any]:
    """Return the number of equal answers, and the margins of the best tokens where others differ."""
    margins = [find_margin(*pair) for pair in zip(found, expected, strict=True)]
    others = [round(margin, 6) for margin in margins if margin is not None]
    passed = len(others) <= MAX_DIFFERING and all(margin < MAX_GAP for margin in others)
    return {"prompts": len(margins), "same": margins.count(None), "margins_of_others": others, "passed": passed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipelines, print and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare pipelines of several engines with the whole model.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--pipelines", nargs="+", choices=PIPELINES, default=PIPELINES, metavar="BACKENDS")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PYTHON", help="as for parallax serve")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help=f"at most {len(PROMPTS)}")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    report = read_report(options.out) or {"model": options.model.name, "tokens": TOKENS, "pipelines": {}}
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    texts = PROMPTS[: options.prompts]
    prompts = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in texts]
    pending = [pipeline for pipeline in options.pipelines if pipeline not in report["pipelines"]]
    whole = run_pipeline(options, WHOLE, prompts)["answers"] if pending else []
    for pipeline in pending:
        found = run_pipeline(options, pipeline, prompts)
        result = compare_answers(found.pop("answers"), whole)
        run = describe_run(["benchmarks.mixed_engines", options.model.name, "--pipelines", pipeline], PACKAGES)
        about = {"commit": run["commit"], "load": run["machine"]["load"]}
        report["pipelines"][pipeline] = found | result | about
        print(f"{pipeline}: {result['same']} of {result['prompts']} prompts equal, {result['margins_of_others']}")
        write_report(options.out, report | run)
    return 0 if all(each["passed"] for each in report["pipelines"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
