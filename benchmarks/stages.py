"""Compares the tokens of a real model served in 1, 2 and 3 stages, one request at a time and 8 at once.

    python -m benchmarks.stages MODEL_FOLDER --out benchmarks/results/stages.json

Greedy tokens are compared with those of transformers in float32, for new prompts and for prompts with a cached prefix.
Where they differ, the gap between the two best logits of transformers is printed: at most one prompt may differ, at a
gap below 1e-3. Sampled tokens (temperature 1, a seed for each prompt) are compared with those of a single stage that
serves one request at a time, and must be equal. Parts already in the report are not run again; ``--parts`` runs only
the named ones. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.parity import PROMPTS, Reference, find_difference, generate_references
from benchmarks.record import describe_run, read_report, write_report
from parallax_backend_mlx.backend import MlxBackend
from parallax_core.api import LayerRange, Request, RequestId, Sampling, Stage, StagePlan, read_object
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine

MAX_DIFFERING = 1
MAX_GAP = 1e-3
TOGETHER = 8
VERSIONS = ("mlx", "mlx-lm", "torch", "transformers")


@dataclass(frozen=True)
class Part:
    """One way to serve the prompts."""

    num_stages: int
    together: int
    is_cached: bool = False
    is_sampled: bool = False

    @property
    def name(self) -> str:
        """Its name in the report."""
        kind = "sampled" if self.is_sampled else "cached" if self.is_cached else "cold"
        return f"{self.num_stages} stages, {self.together} at once, {kind}"


ALONE = Part(1, 1, is_sampled=True)
"""The reference of the other sampled parts."""
PARTS = (
    *(Part(stages, together, cached) for stages in (1, 2, 3) for together in (1, TOGETHER) for cached in (False, True)),
    ALONE,
    Part(1, TOGETHER, is_sampled=True),
    Part(3, TOGETHER, is_sampled=True),
)


def open_stages(folder: Path, num_stages: int, num_layers: int) -> list[Callable[[], Stage]]:
    """Return functions that open the stages of an even split."""
    borders = [num_layers * index // num_stages for index in range(num_stages + 1)]
    plans = [
        StagePlan(model=folder, dtype="float32", layers=LayerRange(*pair), memory_fraction=0.2)
        for pair in pairwise(borders)
    ]
    return [partial(MlxBackend().open_stage, plan) for plan in plans]


async def serve_prompts(engine: PipelineEngine, requests: Sequence[Request], together: int) -> list[list[int]]:
    """Return the tokens of each request, with ``together`` requests at once."""
    slots = asyncio.Semaphore(together)

    async def serve(request: Request) -> list[int]:
        async with slots:
            deltas = [delta async for delta in engine.submit(request)]
        finish = deltas[-1].finish
        assert finish is not None
        assert finish.reason == "length", finish.message
        return [token for delta in deltas for token in delta.tokens]

    return list(await asyncio.gather(*map(serve, requests)))


def make_requests(prompts: Sequence[Sequence[int]], count: int, *, is_sampled: bool, name: str) -> list[Request]:
    """Return a request for each prompt."""
    return [
        Request(
            id=RequestId(f"{name}-{index}"),
            prompt=tuple(prompt),
            max_tokens=count,
            sampling=Sampling(temperature=1, top_p=0.95, seed=index) if is_sampled else Sampling(temperature=0),
        )
        for index, prompt in enumerate(prompts)
    ]


async def run_part(part: Part, folder: Path, num_layers: int, prompts: Sequence[Sequence[int]], count: int) -> Any:
    """Serve the prompts in one way, and return their tokens."""
    engine = PipelineEngine(LocalExecutor(open_stages(folder, part.num_stages, num_layers)), lambda _: "")
    await engine.start()
    try:
        if part.is_cached:
            await serve_prompts(engine, make_requests(prompts, 1, is_sampled=False, name="before"), TOGETHER)
        requests = make_requests(prompts, count, is_sampled=part.is_sampled, name="now")
        before = engine.stats()[0].cached_tokens
        tokens = await serve_prompts(engine, requests, part.together)
        cached = engine.stats()[0].cached_tokens - before
        assert not part.is_cached or cached > sum(map(len, prompts)) / 2, "the prompts were not cached"
        return {"tokens": tokens, "cached_tokens": cached}
    finally:
        await engine.stop()


def judge_part(part: Part, tokens: list[list[int]], references: Sequence[Reference], alone: Any) -> dict[str, Any]:
    """Compare the tokens of a part with the expected ones, and return the result."""
    if part.is_sampled:
        differing = [
            index for index, (one, other) in enumerate(zip(tokens, alone["tokens"], strict=True)) if one != other
        ]
        return {"differing": differing, "passed": not differing}
    found = [find_difference(*each) for each in zip(PROMPTS, tokens, references, strict=False)]
    differences = [asdict(each) for each in found if each]
    passed = len(differences) <= MAX_DIFFERING and all(each["gap"] < MAX_GAP for each in differences)
    return {"differences": differences, "passed": passed}


def choose_parts(names: Sequence[str] | None) -> list[Part]:
    """Return the named parts in order, with the reference of sampled ones; all parts if ``names`` is None."""
    if names is None:
        return list(PARTS)
    chosen = [part for part in PARTS if part.name in names]
    if any(part.is_sampled for part in chosen) and ALONE not in chosen:
        chosen.insert(0, ALONE)
    return chosen


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts missing from the report, and return the report."""
    text = ModelTokenizer(options.model)
    prompts = [text.encode(prompt) for prompt in PROMPTS[: options.prompts]]
    num_layers = int(read_object(options.model / "config.json")["num_hidden_layers"])
    report = read_report(options.out)
    done: dict[str, Any] = report.get("parts", {})
    if not done:
        references = list(generate_references(options.model, [list(prompt) for prompt in prompts], options.tokens))
        report["references"] = [asdict(each) for each in references]
    references = [Reference(**each) for each in report["references"]]
    for part in choose_parts(options.parts):
        if part.name in done:
            continue
        found = asyncio.run(run_part(part, options.model, num_layers, prompts, options.tokens))
        alone = done.get(ALONE.name, found)
        done[part.name] = found | judge_part(part, found["tokens"], references, alone)
        print(f"{part.name}: {'pass' if done[part.name]['passed'] else 'FAIL'}", flush=True)
        for difference in done[part.name].get("differences", ()):
            print("  differs after {at} tokens, gap {gap:.1e}: {prompt!r}".format(**difference))
        sizes = ["--prompts", str(options.prompts), "--tokens", str(options.tokens)]
        report |= describe_run(["benchmarks.stages", options.model.name, *sizes], VERSIONS)
        write_report(options.out, report | {"parts": done})
    return report | {"parts": done}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the ways to serve a model, token by token.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help="number of prompts")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per prompt")
    parser.add_argument("--parts", nargs="+", choices=[part.name for part in PARTS], help="run only these parts")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    report = compare(parser.parse_args(arguments))
    passed = [part["passed"] for part in report["parts"].values()]
    print(f"{sum(passed)} of {len(passed)} ways to serve give the expected tokens")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
