"""Compares the MLX backend with the continuous batching of mlx-lm, and small page pools with large ones.

    python benchmarks/backend_mlx.py MODEL_FOLDER --out benchmarks/results/mlx.json

Both run in this process, on the same device and BLAS, with the same weights in the same dtype and a config.json that
mlx-lm reads correctly. They take turns of a few steps, so that other load on the machine affects both. Prompts have
different lengths; decoding is greedy. Rates are medians over the turns; a ratio above 1 means the backend is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from parallax_backend_mlx.backend import MlxBackend, describe_device
from parallax_backend_mlx.cache_layout import read_layout
from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.network import Network
from parallax_backend_mlx.paged_runner import PagedRunner
from parallax_backend_mlx.row_groups import Grouping
from parallax_backend_mlx.runtime import Module, mx
from parallax_backend_mlx.stage import MlxStage
from parallax_core.api import (
    Account,
    Draw,
    Drawn,
    Drop,
    Open,
    PoolInfo,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
)

GREEDY = Sampling(temperature=0)
PREFILL = 512
PAGES = 128
"""Pages of the smaller pool."""
TIMES = 16
"""The larger pool has `TIMES` as many pages."""


class StageDecoder:
    """Decodes sequences on a stage, with one row for each in every step."""

    def __init__(self, stage: Stage, prompts: Sequence[Sequence[int]]) -> None:
        self._stage = stage
        self._seqs = [SeqId(number) for number in range(len(prompts))]
        self.tokens: list[list[int]] = [[] for _ in prompts]
        self._lengths = [0] * len(prompts)
        stage.edit([Open(seq, SequenceSpec(prompt_length=1, sampling=GREEDY)) for seq in self._seqs])
        for number, prompt in enumerate(prompts):
            self.prefill(number, prompt)

    def prefill(self, number: int, prompt: Sequence[int]) -> None:
        """Run a prompt in the largest chunks the stage takes."""
        size = self._stage.info.max_batch_tokens
        for start in range(0, len(prompt), size):
            self._run([(number, tuple(prompt[start : start + size]))])

    def step(self) -> None:
        """Decode a token of each sequence."""
        self._run([(number, (tokens[-1],)) for number, tokens in enumerate(self.tokens)])

    def close(self) -> None:
        """Drop the sequences."""
        self._stage.edit([Drop(seq) for seq in self._seqs])

    def _run(self, parts: Sequence[tuple[int, tuple[int, ...]]]) -> None:
        rows = [
            Row(self._seqs[number], self._lengths[number], tokens, (Draw(len(tokens) - 1),)) for number, tokens in parts
        ]
        answers = self._stage.step(StageBatch(tuple(rows))).wait().answers
        for (number, tokens), answer in zip(parts, answers, strict=True):
            assert isinstance(answer, Drawn)
            self.tokens[number].append(answer.tokens[0])
            self._lengths[number] += len(tokens)


class MlxLmDecoder:
    """Decodes sequences with `mlx_lm.generate.BatchGenerator`."""

    def __init__(self, model: Module, prompts: Sequence[Sequence[int]]) -> None:
        from mlx_lm.generate import BatchGenerator  # after the BLAS

        self._generator = BatchGenerator(model, max_tokens=10_000, completion_batch_size=max(8, len(prompts)))
        self._uids = self._generator.insert([list(prompt) for prompt in prompts])
        self.tokens: dict[int, list[int]] = {uid: [] for uid in self._uids}
        while min(map(len, self.tokens.values())) < 1:
            self.step()
        self.finish()

    def step(self) -> None:
        """Decode a token of each sequence."""
        for response in self._generator.next()[1]:  # type: ignore[no-untyped-call]
            self.tokens[response.uid].append(response.token)

    def finish(self) -> None:
        """Wait for the step that the generator runs ahead."""
        mx.synchronize(self._generator.stream)

    def close(self) -> None:
        """Drop the sequences."""
        self._generator.remove(self._uids)  # type: ignore[no-untyped-call]
        self._generator.close()  # type: ignore[no-untyped-call]


def make_prompts(rows: int, longest: int, vocab_size: int) -> list[list[int]]:
    """Return ``rows`` prompts, from ``longest`` tokens down to half of that."""
    lengths = [longest - (longest * row) // (2 * rows) for row in range(rows)]
    return [[(row * 37 + at * 13 + 5) % vocab_size for at in range(length)] for row, length in enumerate(lengths)]


def clock(call: Callable[[], None], times: int) -> float:
    """Return the mean seconds of a call over ``times`` calls."""
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def take_turns(one: Callable[[], None], other: Callable[[], None], turns: int, steps: int) -> list[list[float]]:
    """Return the seconds per step of both, a list with one figure per turn for each."""
    seconds: list[list[float]] = [[], []]
    for turn in range(turns):
        for index in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[index].append(clock((one, other)[index], steps))
    return seconds


def describe(seconds: Sequence[Sequence[float]], tokens: int) -> dict[str, float]:
    """Return the rates of both in tokens per second, and the median ratio over the turns."""
    ours, theirs = (statistics.median(part) for part in seconds)
    ratios = [theirs / ours for ours, theirs in zip(*seconds, strict=True)]
    return {
        "tokens_per_s": round(tokens / ours, 1),
        "mlx_lm_tokens_per_s": round(tokens / theirs, 1),
        "ratio": round(statistics.median(ratios), 2),
    }


def compare_decode(stage: Stage, model: Module, rows: int, longest: int, turns: int) -> dict[str, Any]:
    """Decode ``rows`` sequences on both, and return the figures."""
    prompts = make_prompts(rows, longest, stage.info.vocab_size)
    ours, theirs = StageDecoder(stage, prompts), MlxLmDecoder(model, prompts)

    def run_theirs() -> None:
        for _ in range(steps):
            theirs.step()
        theirs.finish()

    def run_ours() -> None:
        for _ in range(steps):
            ours.step()

    steps = 4
    seconds = take_turns(run_ours, run_theirs, turns, 1)
    same = sum(mine[:8] == list(other)[:8] for mine, other in zip(ours.tokens, theirs.tokens.values(), strict=True))
    ours.close()
    theirs.close()
    return {"rows": rows, "longest_prompt": longest, "same_first_8_tokens": same} | describe(seconds, rows * steps)


def compare_prefill(stage: Stage, model: Module, turns: int) -> dict[str, Any]:
    """Prefill one long prompt on both, in one piece by mlx-lm and in chunks by the stage, and return the figures."""
    (prompt,) = make_prompts(1, PREFILL, stage.info.vocab_size)

    def run_ours() -> None:
        StageDecoder(stage, [prompt]).close()

    def run_theirs() -> None:
        MlxLmDecoder(model, [prompt]).close()

    return {"prompt": PREFILL} | describe(take_turns(run_ours, run_theirs, turns, 1), PREFILL)


def compare_pools(stage: MlxStage, network: Network, turns: int) -> dict[str, Any]:
    """Decode with two pools of different sizes, both with memory for all their pages, and return the figures."""
    layout = read_layout(network)
    assert layout is not None
    runs = []
    for pages in (PAGES, TIMES * PAGES):
        account = Account(replace(stage.info, pools=(PoolInfo(kind="full", page_size=16, num_pages=pages),)))
        grouping = Grouping(is_batched=True, has_states=False, spare_keys=0)
        runner = PagedRunner(network, layout, account.pools, grouping)
        runner.reserve(pages)
        runs.append(StageDecoder(MlxStage(account, runner), make_prompts(8, 64, stage.info.vocab_size)))
    small, large = take_turns(runs[0].step, runs[1].step, 8 * turns, 1)
    ratio = statistics.median(after / before for before, after in zip(small, large, strict=True))
    return {
        "pages": PAGES,
        "times": TIMES,
        "step_s": round(statistics.median(small), 4),
        "step_s_of_larger": round(statistics.median(large), 4),
        "ratio": round(ratio, 2),
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--longest", type=int, default=128, help="tokens of the longest prompt")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    stage = MlxBackend().open_ordinary(StagePlan(model=options.model))
    model_slice, _ = load_network(StagePlan(model=options.model), read_checkpoint(options.model).tensors)
    report: dict[str, Any] = describe_machine(options.model.name)
    report["decode"] = [
        compare_decode(stage, model_slice.model, rows, options.longest, options.turns) for rows in options.rows
    ]
    report["prefill"] = compare_prefill(stage, model_slice.model, options.turns)
    report["pool"] = compare_pools(stage, Network(model_slice), options.turns)
    text = json.dumps(report, indent=2)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


def describe_machine(model: str) -> dict[str, Any]:
    """Return the commit, model, machine, device and versions of this run."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S607
    return {
        "commit": commit.stdout.strip(),
        "model": model,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": describe_device(),
        "versions": {name: metadata.version(name) for name in ("mlx", "mlx-lm")},
    }


if __name__ == "__main__":
    main()
