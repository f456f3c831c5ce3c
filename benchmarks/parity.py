"""Compares the greedy tokens of a real model with those of transformers, in float32, however it is served.

    python -m benchmarks.parity stage --backend torch --prompts 20 --tokens 64 --out FILE
    python -m benchmarks.parity stages --out benchmarks/results/stages.json
    python -m benchmarks.parity served --pipelines vllm mlx,vllm --python vllm=PYTHON --out FILE

``stage`` runs every prompt through a stage as in a server: prefilled in chunks, then decoded one token at a time.
``stages`` has 1, 2 and 3 stages on MLX, one request at a time and 8 at once, with cold and cached prefixes; sampled
tokens must be those of a single stage that serves one request at a time. ``served`` asks `parallax serve` over HTTP,
with a stage on each named backend, in worker processes; ``--python`` is not needed for an environment that
`parallax engines install` has made.

Where the tokens differ, the gap between the two best logits of transformers is reported: two correct programs may order
nearly equal logits differently. A part fails if more than one prompt differs, or one at a gap of 1e-3 or more. Parts
already in the report are not run again. Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.record import count_cores, describe_run, find_model, make_parser, read_report, write_report
from benchmarks.servers import cluster, fetch, serving
from parallax_core.api import (
    Draw,
    Drawn,
    Drop,
    LayerRange,
    Open,
    Request,
    RequestId,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
    count_layers,
    read_config,
)
from parallax_core.node.executor.local import LocalExecutor
from parallax_core.node.pipeline.engine import PipelineEngine

PROMPTS: tuple[str, ...] = tuple(
    json.loads(Path(__file__).with_name("data").joinpath("prompts.json").read_text("utf-8"))
)
MAX_DIFFERING, MAX_GAP = 1, 1e-3
BACKENDS = {
    "mlx": ("parallax_backend_mlx.backend", "MlxBackend"),
    "torch": ("parallax_backend_torch.backend", "TorchBackend"),
}
PIPELINES = (
    *("vllm", "vllm,vllm", "vllm,vllm,vllm", "torch,vllm", "vllm,mlx,torch", "mlx,torch", "torch,mlx"),
    *("sglang", "sglang,sglang", "sglang,sglang,sglang", "mlx,sglang", "sglang,vllm"),
)
"""The backends of the stages, in order."""
ENDS = ("", "<|im_end|>", "<|endoftext|>")
"""The texts by which servers show an end-of-text token."""
TOGETHER = 8
ALONE = "1 stages, 1 at once, sampled"
"""The reference of the other sampled parts."""
PARTS = {
    f"{stages} stages, {together} at once, {kind}": (stages, together, kind)
    for kind in ("cold", "cached", "sampled")
    for stages in (1, 2, 3)
    for together in (1, TOGETHER)
}
VERSIONS = ("mlx", "mlx-lm", "torch", "transformers")
Figures = dict[str, Any]
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Reference:
    """The output of transformers for one prompt."""

    tokens: list[int]
    gaps: list[float]
    """The gap between the two best logits at each token."""


def generate_references(folder: Path, prompts: Sequence[Sequence[int]], count: int) -> Iterator[Reference]:
    """Yield the greedy output of transformers for each prompt.

    All prompts run in one batch, padded on the left; the attention mask hides the padding.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    # With a thread on every core, threads wait for each other whenever anything else runs.
    torch.set_num_threads(max(1, count_cores() - 1))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    width = max(map(len, prompts))
    # Replaces the model's own configuration, which would stop at an end-of-text token; the stage does not stop.
    model.generation_config = GenerationConfig(
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with torch.inference_mode():
        answer = model.generate(
            torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        )
    tops = torch.stack([logits.topk(2).values for logits in answer.logits], dim=1)
    for tokens, top in zip(answer.sequences[:, width:].tolist(), tops.tolist(), strict=True):
        yield Reference(tokens, [best - second for best, second in top])


class Comparison:
    """The prompts, and what transformers makes of them, which is computed when it is needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: Path = options.model or find_model()
        self.count: int = options.tokens
        self.texts = PROMPTS[: options.prompts]
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.prompts = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in self.texts]
        self._references: list[Reference] = []

    def judge(self, outputs: Sequence[Sequence[Any]], show: Callable[[Reference], Sequence[Any]]) -> Figures:
        """Return the first differences between outputs and what ``show`` makes of the references."""
        self._references = self._references or list(generate_references(self.folder, self.prompts, self.count))
        differences = list[Figures]()
        for text, found, reference in zip(self.texts, outputs, self._references, strict=True):
            pairs = enumerate(itertools.zip_longest(found, show(reference)))
            at = next((place for place, (left, right) in pairs if left != right), None)
            differences += [] if at is None else [{"prompt": text, "at": at, "gap": reference.gaps[at]}]
        passed = len(differences) <= MAX_DIFFERING and all(each["gap"] < MAX_GAP for each in differences)
        size = {"prompts": len(self.texts), "tokens": self.count, "same": len(self.texts) - len(differences)}
        return {**size, "differences": differences, "passed": passed}

    def divide(self, num_stages: int) -> Iterator[tuple[int, int]]:
        num_layers = count_layers(read_config(self.folder)) or 1
        return itertools.pairwise(num_layers * index // num_stages for index in range(num_stages + 1))

    def show_text(self, reference: Reference) -> list[str]:
        """Return the text of each token up to an end of text, as `ask_greedily` shows those of a server."""
        texts = (self.tokenizer.decode([token], skip_special_tokens=False) for token in reference.tokens)
        return ["?" if "\ufffd" in text else text for text in itertools.takewhile(lambda text: text not in ENDS, texts)]


def open_backend(name: str, plan: StagePlan) -> Stage:
    module, attribute = BACKENDS[name]
    stage: Stage = getattr(importlib.import_module(module), attribute)().open_stage(plan)
    return stage


def run_row(stage: Stage, row: Row) -> list[int]:
    answers = stage.step(StageBatch((row,), step=row.start)).wait().answers
    return [token for answer in answers if isinstance(answer, Drawn) for token in answer.tokens]


def prefill(stage: Stage, seq: SeqId, prompt: Sequence[int]) -> list[int]:
    """Compute a prompt in chunks; return the token after it."""
    chunk, drawn = stage.info.max_batch_tokens, list[int]()
    for start in range(0, len(prompt), chunk):
        tokens = tuple(prompt[start : start + chunk])
        draws = (Draw(len(tokens) - 1),) if start + len(tokens) == len(prompt) else ()
        drawn += run_row(stage, Row(seq, start, tokens, draws))
    return drawn


def generate_stage(stage: Stage, prompt: Sequence[int], count: int) -> list[int]:
    """Return ``count`` greedy tokens after ``prompt``."""
    seq = SeqId(0)
    stage.edit([Open(seq, SequenceSpec(prompt_length=len(prompt), sampling=GREEDY))])
    output = prefill(stage, seq, prompt)
    while len(output) < count:
        output += run_row(stage, Row(seq, len(prompt) + len(output) - 1, (output[-1],), (Draw(0),)))
    stage.edit([Drop(seq)])
    return output


def try_stage(compared: Comparison, backend: str) -> Figures:
    stage = open_backend(backend, StagePlan(model=compared.folder, dtype="float32"))
    # The stage first: the threads of transformers would slow it down.
    outputs = [generate_stage(stage, prompt, compared.count) for prompt in compared.prompts]
    stage.close()
    found = compared.judge(outputs, lambda reference: reference.tokens)
    return {"backend": backend, "device": stage.info.device, **found}


async def serve_prompts(
    engine: PipelineEngine, prompts: Sequence[Sequence[int]], count: int, together: int, *, is_sampled: bool
) -> list[list[int]]:
    slots, names = asyncio.Semaphore(together), itertools.count()

    async def serve(index: int, prompt: Sequence[int]) -> list[int]:
        sampling = Sampling(temperature=1, top_p=0.95, seed=index) if is_sampled else GREEDY
        name = RequestId(f"{together}-{count}-{next(names)}")
        request = Request(id=name, prompt=tuple(prompt), max_tokens=count, sampling=sampling)
        async with slots:
            deltas = [delta async for delta in engine.submit(request)]
        assert deltas[-1].finish is not None
        assert deltas[-1].finish.reason == "length", deltas[-1].finish.message
        return [token for delta in deltas for token in delta.tokens]

    return list(await asyncio.gather(*(serve(index, prompt) for index, prompt in enumerate(prompts))))


async def run_stages(compared: Comparison, part: str) -> Figures:
    num_stages, together, kind = PARTS[part]
    plans = [
        StagePlan(model=compared.folder, dtype="float32", layers=LayerRange(*pair), memory_fraction=0.2)
        for pair in compared.divide(num_stages)
    ]
    engine = PipelineEngine(LocalExecutor([partial(open_backend, "mlx", plan) for plan in plans]), lambda _: "")
    await engine.start()
    try:
        if kind == "cached":
            await serve_prompts(engine, compared.prompts, 1, TOGETHER, is_sampled=False)
        before = engine.stats()[0].cached_tokens
        is_sampled = kind == "sampled"
        tokens = await serve_prompts(engine, compared.prompts, compared.count, together, is_sampled=is_sampled)
        cached = engine.stats()[0].cached_tokens - before
        assert kind != "cached" or cached > sum(map(len, compared.prompts)) / 2, "the prompts were not cached"
        return {"tokens": tokens, "cached_tokens": cached}
    finally:
        await engine.stop()


def try_stages(compared: Comparison, part: str, parts: Figures) -> Figures:
    """Serve the prompts in one way, and compare with transformers, or with what was sampled alone."""
    found = asyncio.run(run_stages(compared, part))
    if part.endswith("sampled"):
        alone = parts.get(ALONE, found)["tokens"]
        return found | {"passed": found["tokens"] == alone}
    return found | compared.judge(found["tokens"], lambda reference: reference.tokens)


def ask_greedily(url: str, model: str, count: int, prompt: Sequence[int]) -> list[str]:
    """Request greedy tokens over HTTP; a token that is not a whole character is shown as "?"."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": count, "temperature": 0, "logprobs": 2}
    found = fetch(f"{url}/completions", body)["choices"][0]["logprobs"]["tokens"]
    kept = itertools.takewhile(lambda token: token not in ENDS, found)
    return ["?" if "\ufffd" in token or token.startswith("bytes:") else token for token in kept]


def try_served(compared: Comparison, pipeline: str, options: argparse.Namespace) -> Figures:
    backends = pipeline.split(",")
    words = ["--dtype", "float32", "--set", "memory_fraction=0.1"]
    words += ["--backend", pipeline if len(set(backends)) > 1 else backends[0]]
    if len(backends) > 1:
        words += ["--layers", ",".join(f"{start}-{stop}" for start, stop in compared.divide(len(backends)))]
    for python in options.python:
        words += ["--python", python] if python.partition("=")[0] in backends else []
    words += [word for option in options.option for word in ("--backend-option", option)]
    with serving(str(compared.folder), *words) as (url, model), ThreadPoolExecutor(len(compared.prompts)) as pool:
        answers = list(pool.map(partial(ask_greedily, url, model, compared.count), compared.prompts))
        devices = [stage["device"] for stage in cluster(url)["replicas"][0]["stages"]]
    return {"devices": devices, **compared.judge(answers, compared.show_text)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts missing from the report, print, and write it; return the exit code."""
    parser = make_parser(__doc__, takes_model=True)
    parser.add_argument("kind", choices=("stage", "stages", "served"))
    parser.add_argument("--backend", choices=list(BACKENDS), default="mlx", help="of `stage`")
    parser.add_argument("--pipelines", nargs="+", default=PIPELINES, metavar="BACKENDS", help="of `served`")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="of `stages`")
    parser.add_argument("--python", action="append", default=[], metavar="BACKEND=PYTHON", help="as for parallax serve")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the backend")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help=f"at most {len(PROMPTS)}")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens per prompt")
    options = parser.parse_args(arguments)
    compared, report = Comparison(options), read_report(options.out)
    parts: Figures = report.get("parts", {})
    runs: dict[str, Callable[[str], Figures]] = {
        "stage": lambda name: try_stage(compared, name),
        "stages": lambda name: try_stages(compared, name, parts),
        "served": lambda name: try_served(compared, name, options),
    }
    names = {"stage": [options.backend], "stages": options.parts, "served": options.pipelines}[options.kind]
    for name in names:
        if name not in parts:
            parts[name] = runs[options.kind](name)
            shown = {key: value for key, value in parts[name].items() if key != "tokens" or options.kind != "stages"}
            print(f"{name}: {'pass' if parts[name]['passed'] else 'FAIL'} {json.dumps(shown)}", flush=True)
            words = [options.kind, "--prompts", str(options.prompts), "--tokens", str(options.tokens)]
            run = describe_run(["benchmarks.parity", *words], VERSIONS)
            write_report(options.out, {**run, "model": compared.folder.name, "parts": parts})
    return 0 if all(part["passed"] for part in parts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
