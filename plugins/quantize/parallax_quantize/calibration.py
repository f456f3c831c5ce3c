"""Runs a text through a model, layer by layer, and collects what matrices are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer

from parallax_backend_torch.watching import OPTIONS, ModulePart, watching
from parallax_core.api import (
    Drop,
    LayerRange,
    Open,
    ParallaxError,
    Row,
    Sampling,
    SeqId,
    SequenceSpec,
    Stage,
    StageBatch,
    StagePlan,
    Tensor,
)

WINDOW = 512
"""Tokens that are read together."""
FEWEST_TOKENS, MOST_TOKENS = 2 * WINDOW, 64 * WINDOW
MEMORY_FRACTION = 0.02
"""Of the free memory, for the keys and values of a window."""
SEQ = SeqId(1)

OpenStage = Callable[[StagePlan], Stage]
Windows = list[tuple[tuple[int, ...], tuple[Tensor, ...]]]
"""The tokens of each window, and what the next layer takes of them."""
Round = Callable[[str, torch.Tensor], torch.Tensor]
"""Takes the name of a module and the products of its inputs, and returns what is added to its matrix [out, in]."""


def read_windows(file: Path, tokenizer: Path, context: int) -> Windows:
    """Return the tokens of a text in windows, evenly spread over it.

    Args:
        file: the text.
        tokenizer: of the model, a ``tokenizer.json``.
        context: the most tokens of a window.

    Raises:
        ParallaxError: if there are too few.
    """
    text = file.read_text("utf-8", errors="replace")
    tokens = Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids
    if len(tokens) < FEWEST_TOKENS:
        message = f"{file} has {len(tokens)} tokens, and at least {FEWEST_TOKENS} are needed"
        raise ParallaxError(message, "give a longer text, such as one that the model will be used for")
    width = min(WINDOW, context)
    starts, most = range(0, len(tokens) - width + 1, width), MOST_TOKENS // width
    chosen = [starts[at * len(starts) // most] for at in range(most)] if len(starts) > most else starts
    return [(tuple(tokens[start : start + width]), ()) for start in chosen]


@dataclass(eq=False, slots=True)
class _Collector:
    """Sums the products of the inputs of each matrix with each other."""

    products: dict[tuple[ModulePart, ...], torch.Tensor] = field(default_factory=dict)

    def see(self, parts: Sequence[ModulePart], x: torch.Tensor, out: torch.Tensor) -> None:  # noqa: ARG002
        """See `Watcher.see`."""
        key, x = tuple(parts), x.float()
        if key in self.products:
            self.products[key].addmm_(x.T, x)
        else:
            self.products[key] = x.T @ x


@dataclass(frozen=True, eq=False, slots=True)
class _Corrector:
    """Adds to the outputs what rounded matrices change."""

    changes: Mapping[tuple[ModulePart, ...], torch.Tensor]

    def see(self, parts: Sequence[ModulePart], x: torch.Tensor, out: torch.Tensor) -> None:
        """See `Watcher.see`."""
        if (change := self.changes.get(tuple(parts))) is not None:
            out.addmm_(x.to(out.dtype), change.T)


class LayerRunner:
    """Runs windows through the layers of a model in order, each as it is after it was rounded.

    Args:
        plan: the whole model.
        open_stage: opens some of its layers on the torch backend.
        windows: of a text; replaced by what the next layer takes.
    """

    def __init__(self, plan: StagePlan, open_stage: OpenStage, windows: Windows) -> None:
        self._plan, self._open_stage, self._windows = plan, open_stage, windows

    def run(self, layer: int, round_matrix: Round) -> None:
        """Show what each matrix of a layer is given, and go on with the matrices that are returned."""
        layers = LayerRange(layer, layer + 1)
        stage = self._open_stage(plan_layers(self._plan, layers))
        try:
            with torch.inference_mode():
                self._run(stage, round_matrix)
        finally:
            stage.close()

    def _run(self, stage: Stage, round_matrix: Round) -> None:
        collector = _Collector()
        with watching(stage, collector):
            for window in self._windows:
                _step(stage, *window)
        changes = {
            parts: torch.cat([round_matrix(part.name, products) for part in parts])
            for parts, products in collector.products.items()
        }
        if not stage.info.gives:
            return
        with watching(stage, _Corrector(changes)):
            self._windows = [(tokens, _step(stage, tokens, hidden)) for tokens, hidden in self._windows]


def plan_layers(plan: StagePlan, layers: LayerRange) -> StagePlan:
    """Return the plan of some layers in float32 on the CPU, that can be watched."""
    return StagePlan(
        model=plan.model,
        layers=layers,
        dtype="float32",
        device="cpu",
        memory_fraction=MEMORY_FRACTION,
        max_batch_tokens=WINDOW,
        options={**OPTIONS},
        listed_weights=plan.listed_weights,
    )


def _step(stage: Stage, tokens: tuple[int, ...], hidden: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what a stage gives of a sequence."""
    stage.edit([Open(SEQ, SequenceSpec(prompt_length=len(tokens), sampling=Sampling(temperature=0)))])
    found = stage.step(StageBatch((Row(SEQ, 0, tokens, ()),), hidden)).wait()
    stage.edit([Drop(SEQ)])
    return found.tensors
