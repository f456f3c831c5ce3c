"""The stage keeps the contract with layers that run in vLLM's way: rows at block ids, each a new request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from parallax_backend_vllm import compat_stage
from parallax_backend_vllm.compat_stage import Found, RunRow
from parallax_backend_vllm.stage import VllmStage
from parallax_core.api import (
    LayerRange,
)
from parallax_core.testing.stage import StageConformance
from tests.support.engine_stages import LAYERS, PAGE, PAGES, PRIME, VOCAB, FailedSteps, make_info


class Layers:
    """A `StageWorker` of small integers, with a cache in blocks: each token sees all before it, by their positions."""

    device = torch.device("cpu")
    most_rows = 2
    """Fewer than a batch of the kit has, so that batches are computed in parts."""

    def __init__(self, layers: LayerRange) -> None:
        self.layers = layers
        self.cache = torch.zeros(len(layers), PAGES + 1, PAGE)
        self.fails = self.is_broken = False

    def run(self, rows: Sequence[RunRow], hidden: torch.Tensor | None) -> Found:
        """Compute rows one after the other."""
        assert all(0 not in row.blocks for row in rows), "block 0 is vLLM's own"
        sizes = [len(row.tokens) - row.start for row in rows]
        given: Sequence[torch.Tensor | None] = [None] * len(rows) if hidden is None else hidden.split(sizes)
        states = [self._run_row(row, before) for row, before in zip(rows, given, strict=True)]
        if self.fails:
            for row in rows:
                for place in range(row.start, len(row.tokens)):
                    self.cache[:, row.blocks[place // PAGE], place % PAGE] = torch.nan
            raise torch.OutOfMemoryError("out of memory on purpose")
        logits = torch.stack([self._score(each[-1:])[0] for each in states]) if self.layers.stop == LAYERS else None
        return Found(torch.cat(states), logits)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks."""
        self._check()
        for source, target in pairs:
            self.cache[:, target] = self.cache[:, source]

    def recover(self, blocks: Sequence[int]) -> None:
        """Clean blocks."""
        self._check()
        self.cache[:, list(blocks)] = self.cache[:, list(blocks)].nan_to_num(0.0)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of states."""
        return self._score(hidden)

    def close(self) -> None:
        """Release the cache."""
        del self.cache

    def _check(self) -> None:
        if self.is_broken:
            raise RuntimeError("vLLM is broken on purpose")

    def _run_row(self, row: RunRow, before: torch.Tensor | None) -> torch.Tensor:
        states = torch.tensor([[float(token)] for token in row.tokens[row.start :]]) if before is None else before
        slots = [(row.blocks[place // PAGE], place % PAGE) for place in range(len(row.tokens))]
        for layer in range(len(self.layers)):
            for (block, slot), state in zip(slots[row.start :], states, strict=True):
                self.cache[layer, block, slot] = state[0]
            seen = self.cache[layer, list(row.blocks)].flatten()  # whole blocks, as attention reads them
            weights = torch.arange(3, 3 + len(seen)).expand(len(seen), -1).tril()[row.start : len(row.tokens)].float()
            sums = weights @ seen
            states = torch.remainder(sums, PRIME)[:, None]
        return states

    def _score(self, states: torch.Tensor) -> torch.Tensor:
        return -torch.remainder(states + 97.0 * torch.arange(VOCAB), PRIME)


def open_stage(layers: LayerRange | None) -> VllmStage:
    """Return a stage of `Layers`."""
    return VllmStage(make_info(layers), Layers(layers or LayerRange(0, LAYERS)))  # type: ignore[arg-type]


def get_layers(stage: VllmStage) -> Layers:
    return cast("Layers", stage.layers)


class TestVllmStage(StageConformance, FailedSteps):
    engine = "vLLM"
    num_layers = LAYERS
    longest = 11
    exact = False

    def open_stage(self, layers: LayerRange | None) -> VllmStage:
        return open_stage(layers)

    def get_layers(self, stage: Any) -> Layers:
        return get_layers(stage)

    @contextmanager
    def plant_failure(self, stage: object) -> Iterator[None]:
        assert isinstance(stage, VllmStage)
        get_layers(stage).fails = True
        yield
        get_layers(stage).fails = False


def test_rows_in_the_order_of_vllm_come_back_in_that_of_the_step() -> None:
    counts = {"a": 1, "b": 2, "c": 1}
    order = ["c", "a", "b"]
    states = torch.tensor([[30.0], [10.0], [20.0], [21.0]])
    assert compat_stage._permute(states, order, counts).tolist() == [[10.0], [20.0], [21.0], [30.0]]
    there = compat_stage._permute(states, order, counts)
    assert compat_stage._permute(there, list(counts), {name: counts[name] for name in order}).equal(states)
