"""Compares the greedy tokens of a backend with those of transformers, in float32, on a real model.

    python -m benchmarks.parity MODEL_FOLDER --prompts 10 --tokens 32 --out benchmarks/results/parity-smollm2.json
    python -m benchmarks.parity MODEL_FOLDER --backend torch --prompts 20 --tokens 64 --out FILE

Every prompt runs through the stage as in a server: prefilled in chunks, then decoded one token at a time. Where the two
differ, the gap between the two best logits of transformers is printed: two correct programs may order nearly equal
logits differently. Exits with 1 if more than one prompt differs, or one at a gap of 1e-3 or more. Needs torch and
transformers.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.record import count_cores, describe_run, write_report
from parallax_core.api import (
    Backend,
    Draw,
    Drawn,
    Drop,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
)

LONG = """Photosynthesis is the process by which plants turn light into energy. It takes place in chloroplasts, which
hold chlorophyll, the pigment that makes leaves green. In the first part of the process, light splits water, oxygen is
set free, and energy is stored for a short time. In the second part, that energy is used to build sugar from carbon
dioxide taken from the air. Almost all life on Earth depends on it, because it feeds plants and whatever eats them, and
because it makes the oxygen that animals breathe. The rate of the process depends on the amount of light, on the
temperature, and on how much carbon dioxide there is. Farmers make use of this in greenhouses, where all three can be
raised. The most important thing to remember is""".replace("\n", " ")
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village at the foot of a mountain, there lived",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nExplain in one sentence why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "Les trois couleurs du drapeau français sont",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    '{"name": "Alice", "age": 30, "city":',
    LONG,
    "The three laws of thermodynamics are",
    "SELECT name, age FROM users WHERE",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWhat is 17 times 23?<|im_end|>\n<|im_start|>assistant\n",
    "In 1969, the first human beings",
    "Die Hauptstadt von Deutschland ist",
    "import numpy as np\n\ndef softmax(x):\n",
    "To make a good cup of tea, first",
    "Roses are red, violets are blue,",
    "The quick brown fox jumps over the lazy dog. The lazy dog",
)
MAX_DIFFERING = 1
MAX_GAP = 1e-3
BACKENDS = {
    "mlx": ("parallax_backend_mlx.backend", "MlxBackend", ("mlx", "mlx-lm")),
    "torch": ("parallax_backend_torch.backend", "TorchBackend", ()),
}
"""The module and class of each backend, and the distributions besides torch and transformers to report."""


@dataclass(frozen=True)
class Difference:
    """The first difference between the outputs for one prompt."""

    prompt: str
    at: int
    """The number of equal output tokens before it."""
    found: int
    expected: int
    """The token of transformers."""
    gap: float
    """The gap between the two best logits of transformers at that position."""


@dataclass(frozen=True)
class Reference:
    """The output of transformers for one prompt."""

    tokens: list[int]
    gaps: list[float]
    """The gap between the two best logits at each token."""


class StepClock:
    """Runs steps, and adds up their tokens and seconds."""

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0

    def run_step(self, stage: Stage, row: Row) -> tuple[int, ...]:
        """Run a step with only ``row``, and return the drawn tokens."""
        start = time.perf_counter()
        answers = stage.step(StageBatch((row,))).wait().answers
        self.tokens += len(row.tokens)
        self.seconds += time.perf_counter() - start
        return tuple(token for answer in answers if isinstance(answer, Drawn) for token in answer.tokens)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


def generate_stage(stage: Stage, prompt: Sequence[int], count: int, clocks: tuple[StepClock, StepClock]) -> list[int]:
    """Return ``count`` greedy tokens after ``prompt`` from the stage; ``clocks`` time prefill and decode."""
    prefill, decode = clocks
    seq, chunk = SeqId(0), stage.info.max_batch_tokens
    stage.edit([Open(seq, SequenceSpec(prompt_length=len(prompt), sampling=Sampling(temperature=0)))])
    output: list[int] = []
    for start in range(0, len(prompt), chunk):
        tokens = tuple(prompt[start : start + chunk])
        is_last = start + len(tokens) == len(prompt)
        output += prefill.run_step(stage, Row(seq, start, tokens, (Draw(len(tokens) - 1),) if is_last else ()))
    while len(output) < count:
        start = len(prompt) + len(output) - 1
        output += decode.run_step(stage, Row(seq, start, (output[-1],), (Draw(0),)))
    stage.edit([Drop(seq)])
    return output


def generate_references(folder: Path, prompts: Sequence[list[int]], count: int) -> Iterator[Reference]:
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
            torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts]),
            attention_mask=torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]),
        )
    tops = torch.stack([logits.topk(2).values for logits in answer.logits], dim=1)
    for tokens, top in zip(answer.sequences[:, width:].tolist(), tops.tolist(), strict=True):
        yield Reference(tokens, [best - second for best, second in top])


def find_difference(prompt: str, found: list[int], reference: Reference) -> Difference | None:
    """Return the first difference of two outputs, or None if they are equal."""
    for at, (left, right) in enumerate(zip(found, reference.tokens, strict=True)):
        if left != right:
            return Difference(prompt, at, left, right, reference.gaps[at])
    return None


def compare_prompts(folder: Path, backend: Backend, prompts: Sequence[str], count: int) -> dict[str, Any]:
    """Run ``prompts`` through both, and return the report."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [tokenizer.encode(prompt, add_special_tokens=False).ids for prompt in prompts]
    # The stage first: the threads of torch would slow it down.
    stage = backend.open_stage(StagePlan(model=folder, dtype="float32"))
    clocks = StepClock(), StepClock()
    outputs = [generate_stage(stage, prompt, count, clocks) for prompt in ids]
    stage.close()
    references = list(generate_references(folder, ids, count))
    found = map(find_difference, prompts, outputs, references)
    return {
        "model": folder.name,
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, ids)),
        "tokens": count,
        "differences": [asdict(difference) for difference in found if difference],
        "smallest_gap": min(gap for reference in references for gap in reference.gaps),
        "prefill_tokens_per_s": round(clocks[0].rate, 1),
        "decode_tokens_per_s": round(clocks[1].rate, 1),
        "device": stage.info.device,
        "dtype": stage.info.dtype,
    }


def judge_report(report: dict[str, Any]) -> bool:
    """Return whether the differences are few and small enough."""
    differences = report["differences"]
    return len(differences) <= MAX_DIFFERING and all(difference["gap"] < MAX_GAP for difference in differences)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Compare a backend with transformers, token by token.")
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument(
        "--backend", choices=list(BACKENDS), default="mlx", help="the backend to compare with transformers"
    )
    parser.add_argument("--prompts", type=int, default=10, help=f"number of prompts, at most {len(PROMPTS)}")
    parser.add_argument("--tokens", type=int, default=32, help="output tokens per prompt")
    parser.add_argument("--out", type=Path, help="where to write the report as JSON")
    options = parser.parse_args(arguments)
    module, name, packages = BACKENDS[options.backend]
    backend: Backend = getattr(importlib.import_module(module), name)()
    report = compare_prompts(options.model, backend, PROMPTS[: options.prompts], options.tokens)
    # Only the name of the folder: its path is specific to one machine.
    shown = [
        options.model.name,
        "--backend",
        options.backend,
        "--prompts",
        str(options.prompts),
        "--tokens",
        str(options.tokens),
    ]
    report |= describe_run(["benchmarks.parity", *shown], (*packages, "transformers", "torch"))
    for difference in report["differences"]:
        line = "differs after {at} tokens, gap {gap:.1e}: {found}, transformers {expected}: {prompt!r}"
        print(line.format(**difference))
    passed = judge_report(report)
    equal = report["prompts"] - len(report["differences"])
    print(f"{equal} of {report['prompts']} prompts equal over {options.tokens} tokens: {'pass' if passed else 'fail'}")
    print(f"prefill {report['prefill_tokens_per_s']} tokens/s, decode {report['decode_tokens_per_s']} tokens/s")
    write_report(options.out, report | {"passed": passed})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
