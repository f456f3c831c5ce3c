"""Runs the layers of a model, its embedding and its head, over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.decoder_layer import Alone, Joined, join_layers
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.model import Layer, Model, Shape, find_obstacle
from parallax_backend_torch.step import Step
from parallax_backend_torch.weights import Selection, Weights
from parallax_sampling_torch.outputs import Picks

SPARE = (".inv_freq", ".masked_bias")
"""The suffixes of tensors in some checkpoints that are not used."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outputs of a run."""

    hidden: torch.Tensor | None = None
    """The hidden states of a stage without the last layer, [tokens, width]."""
    states: torch.Tensor | None = None
    """The hidden states of outputs after the final norm, on the last stage, [outputs, width]; or sums of them."""
    logits: torch.Tensor | None = None
    """The logits of outputs, on the last stage, float32 of shape [outputs, vocab size]."""


class Runner(Protocol):
    """Runs the layers of a stage."""

    def run(self, step: Step, hidden: torch.Tensor | None, picks: Picks) -> RunResult:
        """Run the tokens of a step through the layers.

        Args:
            step: the tokens, and their slots.
            hidden: the output of the previous stage, [tokens, width]; None on the first stage.
            picks: the tokens with outputs.
        """


class Ends:
    """The embedding, the norm and the head, as far as a stage has them."""

    def __init__(self, shape: Shape, selection: Selection, weights: Weights) -> None:
        self._shape = shape
        self._embedding: Packed | None = None
        self._head: Packed | None = None
        self._norm: Norm | None = None
        if selection.has_embedding:
            self._embedding = weights.make_linear("embed_tokens", purpose="ends")
        if selection.is_last:
            self._head = self._embedding if selection.is_tied else weights.make_linear("lm_head", purpose="ends")
            self._norm = Norm(weights.read_vector("norm.weight"), shape.eps, shape.norm_offset)
        if selection.layers.start:
            self._embedding = None

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden states before the first layer, [tokens, width]."""
        assert self._embedding, "this is the first stage"
        hidden = self._embedding.gather(tokens)
        return hidden * self._shape.embed_scale if self._shape.embed_scale != 1 else hidden

    def finish(self, hidden: torch.Tensor, picks: Picks) -> RunResult:
        """Return the outputs, from the hidden states after the last layer of the stage."""
        if self._norm is None or self._head is None:
            return RunResult(hidden=hidden)
        if picks.are_none:
            return RunResult()
        states = self._norm(picks.take(hidden))
        logits = self._head.apply(states).float()
        if cap := self._shape.soft_cap:
            logits = torch.tanh(logits / cap) * cap
        if picks.sums:
            states = picks.add_up(states, self._norm(hidden))
        return RunResult(states=states, logits=logits)

    @property
    def num_bytes(self) -> int:
        """The bytes of embedding and head."""
        parts = {id(part): part for part in (self._embedding, self._head) if part is not None}
        return sum(part.num_bytes for part in parts.values())


class Network:
    """A `Runner` of the blocks of a family."""

    def __init__(self, ends: Ends, layers: Sequence[Layer]) -> None:
        self._ends, self._layers = ends, layers
        self._joined: list[tuple[slice, Joined | Alone]] = []
        """The layers, joined to as few calls as possible; found in the first step."""

    def run(self, step: Step, hidden: torch.Tensor | None, picks: Picks) -> RunResult:
        """Run the tokens of a step; see `Runner`."""
        return self.finish(self.run_layers(step, hidden), picks)

    def run_layers(self, step: Step, hidden: torch.Tensor | None) -> torch.Tensor:
        """Return the hidden states after the last layer of the stage, [tokens, width]."""
        hidden = self._ends.embed(step.tokens) if hidden is None else hidden
        self._joined = self._joined or join_layers(self._layers, step.spots)
        for part, layers in self._joined:
            hidden = layers(hidden, step, step.spots[part])
        return hidden

    def finish(self, hidden: torch.Tensor, picks: Picks) -> RunResult:
        """Return the outputs, from the hidden states after the last layer of the stage; see `Runner`."""
        return self._ends.finish(hidden, picks)

    @property
    def obstacle(self) -> str:
        """The reason why the layers cannot be recorded; empty if they can."""
        return next((fault for layer in self._layers if (fault := find_obstacle(layer))), "")


def build_network(model: Model, selection: Selection, weights: Weights) -> Network:
    """Return the layers of a stage with their weights loaded.

    Raises:
        ParallaxError: if the checkpoint lacks a tensor, or has one that is not used.
    """
    ends = Ends(model.shape, selection, weights)  # first: the largest tensors are converted while memory is free
    layers = [
        model.build_layer(index, weights.within(f"layers.{index}"))
        for index in range(selection.layers.start, selection.layers.stop)
    ]
    weights.file.check_left(SPARE)
    return Network(ends, layers)
