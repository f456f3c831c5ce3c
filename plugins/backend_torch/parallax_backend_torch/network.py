"""Runs the layers of a model, its embedding and its head, over all tokens of a step at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from parallax_backend_torch.adapters import AdapterTable
from parallax_backend_torch.arithmetic import Norm
from parallax_backend_torch.config import HINT
from parallax_backend_torch.decoder_layer import Alone, Joined, join_layers
from parallax_backend_torch.device_layers import DeviceLayers
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.model import Layer, Model, Shape, find_obstacle
from parallax_backend_torch.step import Carried, Step
from parallax_backend_torch.tensor_file import Selection
from parallax_backend_torch.weights import Weights
from parallax_core.api import ParallaxError, Unsupported
from parallax_sampling_torch.outputs import Picks

SPARE = (".inv_freq", ".masked_bias")
"""The suffixes of tensors in some checkpoints that are not used."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outputs of a run."""

    carried: Carried | None = None
    """The planes after a stage without the last layer."""
    states: torch.Tensor | None = None
    """The hidden states of outputs after the final norm, on the last stage, [outputs, width]; or sums of them."""
    logits: torch.Tensor | None = None
    """The logits of outputs, on the last stage, float32 of shape [outputs, vocab size]."""


class Runner(Protocol):
    """Runs the layers of a stage."""

    def run(self, step: Step, given: Carried | None, picks: Picks) -> RunResult:
        """Run the tokens of a step through the layers.

        Args:
            step: the tokens, and their slots.
            given: the planes that the previous stage gave; None on the first stage.
            picks: the tokens with outputs.
        """

    def cut(self, selection: Selection) -> Runner:
        """Return a runner of some of the layers, with the same weights; both belong to the same thread."""


@dataclass(frozen=True, eq=False, slots=True)
class Ends:
    """The embedding, the norm and the head, as far as a stage has them."""

    shape: Shape
    embedding: Packed | None = None
    norm: Norm | None = None
    head: Packed | None = None

    def cut(self, selection: Selection) -> Ends:
        """Return those that a stage of fewer layers has."""
        has_end = selection.is_last
        return Ends(
            self.shape,
            embedding=None if selection.layers.start else self.embedding,
            norm=self.norm if has_end else None,
            head=self.head if has_end else None,
        )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden states before the first layer, [tokens, width]."""
        assert self.embedding, "this is the first stage"
        hidden = self.embedding.gather(tokens)
        return hidden * self.shape.embed_scale if self.shape.embed_scale != 1 else hidden

    def finish(self, carried: Carried, picks: Picks) -> RunResult:
        """Return the outputs, from the planes after the last layer of the stage."""
        if self.head is None:
            return RunResult(carried)
        if picks.are_none:
            return RunResult()
        hidden = carried.hidden
        states = self._normalize(picks.take(hidden))
        logits = self.head.apply(states).float()
        if self.shape.logit_scale != 1:
            logits = logits * self.shape.logit_scale
        if cap := self.shape.soft_cap:
            logits = torch.tanh(logits / cap) * cap
        if picks.sums:
            states = picks.add_up(states, self._normalize(hidden))
        return RunResult(states=states, logits=logits)

    def _normalize(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.norm is None else self.norm(hidden)


def load_ends(shape: Shape, selection: Selection, weights: Weights) -> Ends:
    """Return the embedding, the norm and the head of a stage, with their weights loaded.

    Raises:
        ParallaxError: if the embedding has another width than config.json says.
    """
    embedding = weights.make_linear(shape.embedding, purpose="ends") if selection.has_embedding else None
    if embedding and embedding.in_features != shape.hidden_size:
        message = f"'hidden_size' in config.json is {shape.hidden_size}, and the embedding has {embedding.in_features}"
        raise ParallaxError(message, "fetch the model again")
    if not selection.is_last:
        return Ends(shape, embedding)
    head = embedding if selection.is_tied else weights.make_linear("lm_head", purpose="ends")
    norm = Norm(weights.read_vector(f"{shape.norm}.weight"), shape.eps, shape.norm_offset) if shape.norm else None
    return Ends(shape, embedding, norm, head)


class Network:
    """A `Runner` of the blocks of a family.

    Args:
        ends: the embedding, the norm and the head.
        layers: the layers in order.
        first: the number of the first one.
        adapters: the adapters of the layers, if they take any.
    """

    def __init__(self, ends: Ends, layers: Sequence[Layer], first: int, adapters: AdapterTable | None = None) -> None:
        self._ends, self._layers, self._first, self._adapters = ends, layers, first, adapters
        self._joined: list[tuple[slice, Joined | DeviceLayers | Alone]] = []
        """The layers, joined to as few calls as possible; found in the first step."""

    def run(self, step: Step, given: Carried | None, picks: Picks) -> RunResult:
        """Run the tokens of a step; see `Runner`."""
        return self.finish(self.run_layers(step, given), picks)

    def cut(self, selection: Selection) -> Network:
        """Return a network of some of the layers; see `Runner`."""
        start, stop = selection.layers.start - self._first, selection.layers.stop - self._first
        return Network(self._ends.cut(selection), self._layers[start:stop], selection.layers.start, self._adapters)

    def run_layers(self, step: Step, given: Carried | None) -> Carried:
        """Return the planes after the last layer of the stage."""
        carried = given or Carried(self._ends.embed(step.tokens))
        self._joined = self._joined or join_layers(self._layers, step.caches)
        for part, layers in self._joined:
            carried = layers(carried, step, step.caches[part])
        return carried

    def finish(self, carried: Carried, picks: Picks) -> RunResult:
        """Return the outputs, from the planes after the last layer of the stage; see `Runner`."""
        return self._ends.finish(carried, picks)

    @property
    def obstacle(self) -> str:
        """The reason why the layers cannot be recorded; empty if they can."""
        return next((fault for layer in self._layers if (fault := find_obstacle(layer))), "")


def build_layer(model: Model, index: int, weights: Weights) -> Layer:
    """Return a layer with its weights.

    Raises:
        Unsupported: if its tensors have not the sizes that config.json says.
    """
    try:
        return model.build_layer(index, weights.within(f"layers.{index}"))
    except torch.OutOfMemoryError:
        raise
    except (IndexError, RuntimeError, ValueError) as error:  # as torch tells of sizes that do not fit
        raise Unsupported(
            f"the tensors of layer {index} have other sizes than in config.json: {error}", HINT
        ) from error


def build_network(model: Model, selection: Selection, weights: Weights) -> Network:
    """Return the layers of a stage with their weights loaded.

    Raises:
        ParallaxError: if the checkpoint lacks a tensor, or has one that is not used.
    """
    ends = load_ends(model.shape, selection, weights)  # first: the largest tensors are converted while memory is free
    layers = [build_layer(model, index, weights) for index in range(selection.layers.start, selection.layers.stop)]
    weights.file.check_left(SPARE)
    return Network(ends, layers, selection.layers.start, weights.factory.adapters)
