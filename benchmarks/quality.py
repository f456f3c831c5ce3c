"""Measures the loss of quality when weights, or keys and values, are stored in fewer bits.

    python -m benchmarks.quality MODEL_FOLDER --out benchmarks/results/quality.json

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

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.parity import PROMPTS
from benchmarks.record import describe_run, write_report
from benchmarks.shuffle import shuffle_model
from parallax_core.api import (
    Draw,
    Drawn,
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
WINDOW = 512
TOKENS = 64
"""Output tokens of each prompt."""
SEQ = SeqId(1)


@dataclass(frozen=True)
class Scores:
    """The scores of given tokens, except the first."""

    logprobs: list[float]
    best: list[int]
    """The most likely token at each position."""

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.logprobs + other.logprobs, self.best + other.best)

    @property
    def perplexity(self) -> float:
        """The perplexity of the tokens."""
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


@dataclass(frozen=True)
class Run:
    """The results with one format."""

    text: Scores
    outputs: list[list[int]]
    """Greedy tokens after each prompt."""
    forced: list[Scores]
    """The scores of the reference's greedy tokens after each prompt."""
    weight_bytes: int
    device: str


def score_tokens(stage: Stage, tokens: Sequence[int]) -> Scores:
    """Score a sequence, in the longest steps the stage allows."""
    stage.edit([Open(SEQ, SequenceSpec(prompt_length=len(tokens), sampling=Sampling(temperature=0)))])
    found = Scores([], [])
    for start in range(0, len(tokens) - 1, stage.info.max_batch_tokens):
        stop = min(start + stage.info.max_batch_tokens, len(tokens) - 1)
        outputs = tuple(Score(place - start, tokens[place + 1], 1) for place in range(start, stop))
        answers = stage.step(StageBatch((Row(SEQ, start, tuple(tokens[start:stop]), outputs),))).wait().answers
        scored = [answer for answer in answers if isinstance(answer, Scored)]
        found += Scores([each.logprob for each in scored], [each.top[0][0] for each in scored])
    stage.edit([Drop(SEQ)])
    return found


def generate_greedily(stage: Stage, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the greedy tokens after each prompt, with all prompts decoded together."""
    spec = Sampling(temperature=0)
    stage.edit([Open(SeqId(seq), SequenceSpec(prompt_length=len(it), sampling=spec)) for seq, it in enumerate(prompts)])
    outputs: list[list[int]] = []
    for seq, prompt in enumerate(prompts):
        *before, last = range(0, len(prompt), stage.info.max_batch_tokens)
        for start in before:
            tokens = tuple(prompt[start : start + stage.info.max_batch_tokens])
            stage.step(StageBatch((Row(SeqId(seq), start, tokens),))).wait()
        outputs.append(
            _draw_rows(stage, [Row(SeqId(seq), last, tuple(prompt[last:]), (Draw(len(prompt) - last - 1),))])
        )
    for _ in range(TOKENS - 1):
        lengths = [len(prompt) + len(output) - 1 for prompt, output in zip(prompts, outputs, strict=True)]
        rows = [
            Row(SeqId(seq), length, (output[-1],), (Draw(0),))
            for seq, (length, output) in enumerate(zip(lengths, outputs, strict=True))
        ]
        for output, token in zip(outputs, _draw_rows(stage, rows), strict=True):
            output.append(token)
    stage.edit([Drop(SeqId(seq)) for seq in range(len(prompts))])
    return outputs


def _draw_rows(stage: Stage, rows: Sequence[Row]) -> list[int]:
    answers = stage.step(StageBatch(tuple(rows))).wait().answers
    return [answer.tokens[0] for answer in answers if isinstance(answer, Drawn)]


def run_kind(folder: Path, kind: str, text: list[int], prompts: list[list[int]], reference: Run | None) -> Run:
    """Measure one format; if ``reference`` is None, it becomes the reference."""
    from parallax_backend_torch.backend import TorchBackend

    plan = StagePlan(model=folder, dtype="float32", device="cpu", options=KINDS[kind])
    stage = TorchBackend().open_stage(plan)
    scores = Scores([], [])
    for start in range(0, len(text), WINDOW):
        scores += score_tokens(stage, text[start : start + WINDOW])
    outputs = generate_greedily(stage, prompts)
    given = reference.outputs if reference else outputs
    forced = [score_tokens(stage, prompt + output) for prompt, output in zip(prompts, given, strict=True)]
    stage.close()
    return Run(scores, outputs, forced, stage.info.weight_bytes, stage.info.device)


def count_equal(found: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the number of equal tokens before the first difference."""
    return next((at for at, (left, right) in enumerate(zip(found, wanted, strict=True)) if left != right), len(wanted))


def share_same(found: Sequence[int], wanted: Sequence[int]) -> float:
    """Return the share of positions at which two lists are equal."""
    return sum(left == right for left, right in zip(found, wanted, strict=True)) / len(wanted)


def compare_runs(run: Run, reference: Run) -> dict[str, Any]:
    """Return the figures of one format."""
    equal = [count_equal(found, wanted) for found, wanted in zip(run.outputs, reference.outputs, strict=True)]
    tails = [scores.best[-TOKENS:] for scores in run.forced]
    return {
        "weight_bytes": run.weight_bytes,
        "perplexity": round(run.text.perplexity, 4),
        "perplexity_ratio": round(run.text.perplexity / reference.text.perplexity, 4),
        "same_best": round(share_same(run.text.best, reference.text.best), 4),
        "greedy_equal_until_first_difference": round(sum(equal) / sum(map(len, reference.outputs)), 4),
        "greedy_outputs_equal": sum(count == TOKENS for count in equal),
        "greedy_same_next": round(share_same([*chain(*tails)], [*chain(*reference.outputs)]), 4),
        "device": run.device,
    }


def compare_kinds(folder: Path) -> dict[str, Any]:
    """Measure every format, and return the report."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text, *prompts = [
        tokenizer.encode(each, add_special_tokens=False).ids for each in (TEXT.read_text("utf-8"), *PROMPTS)
    ]
    reference, kinds = None, {}
    for kind in KINDS:
        run = run_kind(folder, kind, text, prompts, reference)
        reference = reference or run
        kinds[kind] = compare_runs(run, reference)
        print(kind, {name: value for name, value in kinds[kind].items() if name != "device"}, flush=True)
    return {
        "text": TEXT.name,
        "text_tokens": len(text),
        "window": WINDOW,
        "prompts": len(prompts),
        "tokens": TOKENS,
        "kinds": kinds,
    }


def main() -> int:
    """Measure, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    parser.add_argument("--as-is", action="store_true", help="leave the channels of the model in their order")
    options = parser.parse_args()
    with nullcontext(options.model) if options.as_is else tempfile.TemporaryDirectory() as folder:
        if not options.as_is:
            shuffle_model(options.model, Path(folder))
        report = {"model": options.model.name, "shuffled": not options.as_is} | compare_kinds(Path(folder))
    command = ["benchmarks.quality", options.model.name, *(["--as-is"] if options.as_is else [])]
    write_report(options.out, report | describe_run(command, ("torch", "tokenizers")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
