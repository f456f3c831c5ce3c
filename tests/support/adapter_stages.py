"""Runs stages with LoRA adapters, of one backend or of several in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from parallax_core.api import (
    Backend,
    Draw,
    Drawn,
    Drop,
    DType,
    LayerRange,
    Open,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
    Tensor,
    read_config,
)
from tests.support.tiny_adapters import list_sizes, make_matrices, write_adapter

GREEDY = Sampling(temperature=0)
PROMPT: tuple[int, ...] = (5, 9, 2, 11, 3)
ALL = ("_proj",)
CLOSE = 2e-3
"""Above the differences of log-probabilities by rounding in float32, and far below those by an adapter."""


@contextmanager
def open_chain(
    backend: Backend, model: Path, *cuts: int, dtype: DType = "float32", **options: str
) -> Iterator[list[Stage]]:
    """Open a model as stages cut before these layers."""
    ends = [0, *cuts, int(read_config(model)["num_hidden_layers"])]
    ranges = [LayerRange(*pair) for pair in pairwise(ends)]
    stages: list[Stage] = []
    try:
        for layers in ranges:
            plan = StagePlan(model=model, layers=layers, dtype=dtype, memory_fraction=1e-3, options=options)
            stages.append(backend.open_stage(plan))
        yield stages
    finally:
        for stage in stages:
            stage.close()


Drawing = tuple[int, float]
"""A token and its log-probability."""


def run(stages: Sequence[Stage], rows: Sequence[Row]) -> list[Drawing]:
    """Return what is drawn for rows that end with a draw."""
    hidden: tuple[Tensor, ...] = ()
    for stage in stages[:-1]:
        hidden = stage.step(StageBatch(tuple(rows), hidden)).wait().tensors
    answers = stages[-1].step(StageBatch(tuple(rows), hidden)).wait().answers
    return [(answer.tokens[0], answer.logprobs[0]) for answer in answers if isinstance(answer, Drawn)]


def open_all(stages: Sequence[Stage], keys: Mapping[int, str]) -> None:
    for stage in stages:
        stage.edit(
            [Open(SeqId(seq), SequenceSpec(prompt_length=5, sampling=GREEDY, adapter=key)) for seq, key in keys.items()]
        )


def generate(stages: Sequence[Stage], keys: Mapping[int, str], length: int = 8) -> dict[int, list[Drawing]]:
    """Return what is drawn for sequences, by their handles, each with the adapter of a key, in the same steps."""
    open_all(stages, keys)
    found: dict[int, list[Drawing]] = {seq: [] for seq in keys}
    tokens = dict.fromkeys(keys, PROMPT)
    start = 0
    for _ in range(length):
        rows = [Row(SeqId(seq), start, tokens[seq], (Draw(len(tokens[seq]) - 1, top=0),)) for seq in keys]
        start += len(rows[0].tokens)
        for seq, drawing in zip(keys, run(stages, rows), strict=True):
            found[seq].append(drawing)
            tokens[seq] = (drawing[0],)
    for stage in stages:
        stage.edit([Drop(SeqId(seq)) for seq in keys])
    return found


def differ(one: Sequence[Drawing], other: Sequence[Drawing]) -> float:
    """Return the largest difference of log-probabilities; infinite if other tokens were drawn."""
    if [token for token, _ in one] != [token for token, _ in other]:
        return float("inf")
    return max(abs(left - right) for (_, left), (_, right) in zip(one, other, strict=True))


def make_adapter(model: Path, folder: Path, endings: Sequence[str] = ALL, rank: int = 4, seed: int = 0) -> Path:
    matrices = make_matrices(list_sizes(model, endings), rank, seed, std=0.3)
    return write_adapter(folder, matrices, r=rank, lora_alpha=2 * rank)
