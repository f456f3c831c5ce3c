"""Measures the loss of quality when weights, or keys and values, are stored in fewer bits.

    python -m benchmarks.quality --out benchmarks/results/quality.json

Runs the torch backend on a CPU with weights in float32, bfloat16, int8 and int4, and with weights in float32 and cached
keys and values in int8, and compares each with float32:

* perplexity: e to the mean negative log-probability of the tokens of ``data/pipelines.txt``, a text written for this
  purpose, in independent windows of 512 tokens.
* same best: the share of the positions of that text at which the most likely token is that of float32.
* greedy: 20 prompts with 64 output tokens each; the share of tokens before the first difference, and, given the tokens
  of float32, the share of positions at which the same token would have come next.

A model that was once quantized to 4 bits, in groups of 32, loses nothing when it is quantized to such groups again,
which says nothing about other models. So its channels are shuffled first: the Llama computes the same, and each group
holds weights from many former groups. ``--as-is`` leaves the channels in their order.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from benchmarks.parity import PROMPTS, generate_stage, open_backend
from benchmarks.record import describe_run, find_model, make_parser, write_report
from benchmarks.shuffle import shuffle_model
from parallax_core.api import (
    Drop,
    Open,
    Row,
    Sampling,
    Score,
    Scored,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
)

TEXT = Path(__file__).parent / "data" / "pipelines.txt"
KINDS = {
    "float32": {"weights": "float32"},
    "bfloat16": {"weights": "bfloat16"},
    "int8": {"weights": "int8"},
    "int4": {"weights": "int4"},
    "float32, int8 keys and values": {"weights": "float32", "kv_cache_dtype": "int8"},
}
"""Options of the backend, by the name of a format; the first is the reference."""
WINDOW, TOKENS = 512, 64
SEQ = SeqId(1)


@dataclass(frozen=True)
class Run:
    """The results with one format."""

    logprobs: list[float]
    best: list[int]
    """The log-probability of each token of the text, and the most likely one."""
    outputs: list[list[int]]
    """Greedy tokens after each prompt."""
    forced: list[int]
    """The most likely tokens where the reference's greedy tokens are given."""
    weight_bytes: int

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def score_tokens(stage: Stage, tokens: Sequence[int]) -> list[Scored]:
    stage.edit([Open(SEQ, SequenceSpec(prompt_length=len(tokens), sampling=Sampling(temperature=0)))])
    found: list[Scored] = []
    for start in range(0, len(tokens) - 1, stage.info.max_batch_tokens):
        stop = min(start + stage.info.max_batch_tokens, len(tokens) - 1)
        outputs = tuple(Score(place - start, tokens[place + 1], 1) for place in range(start, stop))
        answers = stage.step(StageBatch((Row(SEQ, start, tuple(tokens[start:stop]), outputs),))).wait().answers
        found += [answer for answer in answers if isinstance(answer, Scored)]
    stage.edit([Drop(SEQ)])
    return found


def run_kind(folder: Path, kind: str, text: list[int], prompts: list[list[int]], reference: Run | None) -> Run:
    stage = open_backend("torch", StagePlan(model=folder, dtype="float32", device="cpu", options=KINDS[kind]))
    scored = [each for at in range(0, len(text), WINDOW) for each in score_tokens(stage, text[at : at + WINDOW])]
    outputs = [generate_stage(stage, prompt, TOKENS) for prompt in prompts]
    given = reference.outputs if reference else outputs
    tails = (score_tokens(stage, prompt + output)[-TOKENS:] for prompt, output in zip(prompts, given, strict=True))
    forced = [each.top[0][0] for each in chain.from_iterable(tails)]
    stage.close()
    best = [each.top[0][0] for each in scored]
    return Run([each.logprob for each in scored], best, outputs, forced, stage.info.weight_bytes)


def share_same(found: Sequence[int], wanted: Sequence[int]) -> float:
    return round(sum(left == right for left, right in zip(found, wanted, strict=True)) / len(wanted), 4)


def compare_runs(run: Run, reference: Run) -> dict[str, Any]:
    pairs = zip(run.outputs, reference.outputs, strict=True)
    equal = [next((at for at in range(TOKENS) if found[at] != wanted[at]), TOKENS) for found, wanted in pairs]
    return {
        "weight_bytes": run.weight_bytes,
        "perplexity": round(run.perplexity, 4),
        "perplexity_ratio": round(run.perplexity / reference.perplexity, 4),
        "same_best": share_same(run.best, reference.best),
        "greedy_equal_until_first_difference": round(sum(equal) / (TOKENS * len(equal)), 4),
        "greedy_outputs_equal": equal.count(TOKENS),
        "greedy_same_next": share_same(run.forced, [*chain(*reference.outputs)]),
    }


def compare_kinds(folder: Path, num_prompts: int) -> dict[str, Any]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = (TEXT.read_text("utf-8"), *PROMPTS[:num_prompts])
    text, *prompts = [tokenizer.encode(each, add_special_tokens=False).ids for each in texts]
    reference, kinds = None, {}
    for kind in KINDS:
        run = run_kind(folder, kind, text, prompts, reference)
        reference = reference or run
        kinds[kind] = compare_runs(run, reference)
        print(kind, kinds[kind], flush=True)
    sizes = {"text": TEXT.name, "text_tokens": len(text), "window": WINDOW, "prompts": len(prompts), "tokens": TOKENS}
    return {**sizes, "kinds": kinds}


def main() -> None:
    """Measure, print, and write the report."""
    parser = make_parser(__doc__, takes_model=True)
    parser.add_argument("--as-is", action="store_true", help="leave the channels of the model in their order")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    options = parser.parse_args()
    model = options.model or find_model()
    with tempfile.TemporaryDirectory() as scratch:
        if not options.as_is:
            shuffle_model(model, Path(scratch))
        found = compare_kinds(model if options.as_is else Path(scratch), options.prompts)
    command = ["benchmarks.quality", *(["--as-is"] if options.as_is else [])]
    about = {"model": model.name, "shuffled": not options.as_is}
    write_report(options.out, {**about, **found, **describe_run(command, ("torch", "tokenizers"))})


if __name__ == "__main__":
    main()
