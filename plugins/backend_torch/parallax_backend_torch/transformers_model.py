"""Runs models without blocks on the code of transformers, with keys and values in pages."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parallax_backend_torch.arithmetic import attend, store
from parallax_backend_torch.attention_hook import NAME, Attender, AttentionCall, answer_calls
from parallax_backend_torch.config import FULL, SLIDING
from parallax_backend_torch.kernels.attention import Pool, Rows, Rule
from parallax_backend_torch.kernels.paging import attend_plainly
from parallax_backend_torch.model import Shape
from parallax_backend_torch.model_slice import Output, Product, Section, StopAfterLayer, fill_model, sketch_model
from parallax_backend_torch.network import RunResult
from parallax_backend_torch.step import Carried, SlotMapping, Step
from parallax_backend_torch.store import CacheSpec
from parallax_backend_torch.tensor_file import Selection
from parallax_backend_torch.weights import Weights
from parallax_core.api import Unsupported
from parallax_sampling_torch.outputs import Picks

TRIAL = 6
"""The number of tokens with which a model is tested."""
TOLERANCE, COARSE = 1e-3, 5e-2
"""The largest difference from the results of transformers, as a share of the largest number: in float32 and 16 bits."""


@dataclass(slots=True)
class Probe:
    """Attends within one sequence, and records the calls of attention."""

    calls: list[AttentionCall] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the result of attention; see `Attender`."""
        self.calls.append(call)
        count = len(call.query)
        none, all_of_them = (torch.tensor([number], dtype=torch.int32) for number in (0, count))
        rows = Rows(none, none, none, all_of_them, count)
        query, key, value = (each.float().cpu() for each in (call.query, call.key, call.value))
        found = attend_plainly(query, Pool(key, value), rows, make_rule(call))
        return found.to(call.query.device, call.query.dtype)


@dataclass(frozen=True, slots=True)
class Paged:
    """Attends over the pages of a step."""

    step: Step
    first: int
    """The index of the stage's first layer."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Answer as `Attender` says."""
        cache = self.step.caches[call.layer - self.first]
        assert isinstance(cache.places, SlotMapping)
        pool = Pool(*cache.kept)
        store(pool, call.key, call.value, cache.places)
        return attend(call.query, pool, cache.places, make_rule(call))


class Generic:
    """A `network.Runner` of a model of transformers.

    Args:
        model: the model, without weights.
        selection: the layers to run.
        weights: the weights of the stage.
    """

    def __init__(self, model: Any, selection: Selection, weights: Weights) -> None:  # noqa: ANN401 -- of transformers
        self._model, self._selection = model, selection
        self._section: Section
        self._head: Product | None
        self._section, self._head = fill_model(model, selection, weights)
        self._normed = Output()
        model.get_decoder().norm.register_forward_hook(self._normed)
        self._device, self._dtype = weights.factory.device, weights.factory.dtype

    def run(self, step: Step, given: Carried | None, picks: Picks) -> RunResult:
        """Run the tokens of a step; see `Runner`."""
        attender, hidden = Paged(step, self._selection.layers.start), given.hidden if given else None
        return self._run(attender, (step.tokens, step.positions), hidden, picks)

    def cut(self, selection: Selection) -> Generic:
        """Return a runner of some of the layers, of the same model; see `Runner`."""
        part = copy.copy(self)
        part._selection = selection  # noqa: SLF001 -- of a copy of itself
        return part

    def try_layers(self) -> list[CacheSpec]:
        """Run a few tokens, and return the cache of each layer.

        Raises:
            Unsupported: if a layer does not call the attention function exactly once, or the results differ from those
                of transformers alone.
        """
        try:
            probe = Probe()
            found, expected = self._try_line(probe, NAME), self._try_line(probe, "eager")
        except Exception as error:  # the code of a model may raise anything
            raise Unsupported(
                f"transformers cannot run this model on pages: {error}", "choose another backend"
            ) from error
        finally:
            self._model.set_attn_implementation(NAME)
        layers = self._selection.layers
        if [call.layer for call in probe.calls] != list(range(layers.start, layers.stop)):
            raise Unsupported(
                "some layers of this model have a cache other than keys and values", "choose another backend"
            )
        share = float((found - expected).abs().max() / expected.abs().max())
        if not share <= (TOLERANCE if self._dtype == torch.float32 else COARSE):
            message = f"on pages the results of this model differ by {share:.1g} of the largest number"
            raise Unsupported(message, "choose another backend")
        return [self._keep_call(call) for call in probe.calls]

    def _try_line(self, attender: Attender, implementation: str) -> torch.Tensor:
        """Return the output of the layers for a few tokens."""
        self._model.set_attn_implementation(implementation)
        tokens = torch.arange(TRIAL, device=self._device)
        hidden = None
        if self._selection.layers.start:
            width = self._model.config.get_text_config().hidden_size
            hidden = torch.sin(torch.arange(TRIAL * width, device=self._device).float() ** 2).reshape(TRIAL, width)
            hidden = hidden.to(self._dtype)
        with torch.inference_mode():
            found = self._run(attender, (tokens, tokens), hidden, Picks(None))
        result = found.carried.hidden if found.carried else found.logits
        assert result is not None, "every token has an output"
        return result

    def _run(
        self,
        attender: Attender,
        line: tuple[torch.Tensor, torch.Tensor],
        hidden: torch.Tensor | None,
        picks: Picks,
    ) -> RunResult:
        tokens, positions = line
        section = self._section
        section.layers = self._selection.layers
        section.hidden = None if hidden is None else hidden[None]
        given = {"input_ids": tokens[None]} if hidden is None else {"inputs_embeds": hidden[None]}
        try:
            with answer_calls(attender):
                kept = 0 if picks.places is None else picks.places  # in transformers 0 means all
                out = self._model(**given, position_ids=positions[None], use_cache=False, logits_to_keep=kept)
        except StopAfterLayer as left:
            return RunResult(Carried(left.hidden[0]))
        if picks.are_none:
            return RunResult()
        assert self._head is not None, "only the last stage runs to the end"
        assert self._head.seen is not None, "the head was run"
        assert self._normed.seen is not None, "the norm was run"
        return RunResult(states=picks.add_up(self._head.seen, self._normed.seen), logits=out.logits[0].float())

    def _keep_call(self, call: AttentionCall) -> CacheSpec:
        """Return the cache of a layer, after checking its sliding window against config.json."""
        config = self._model.config.get_text_config()
        kinds = getattr(config, "layer_types", None)
        slides = kinds[call.layer] == SLIDING if kinds else bool(call.window)
        if bool(call.window) != slides or (kinds and kinds[call.layer] not in (FULL, SLIDING)):
            message = f"layer {call.layer} has another sliding window than in config.json"
            raise Unsupported(message, "choose another backend")
        if call.key.shape != call.value.shape:
            raise Unsupported("keys and values of this model differ in width", "choose another backend")
        shape = tuple(call.key.shape[1:])
        return CacheSpec("window" if call.window else "full", (shape, shape), call.window)


def make_rule(call: AttentionCall) -> Rule:
    """Return a layer's options of attention as a `Rule` of the kernels."""
    sinks = None if call.sinks is None else call.sinks.float()
    return Rule(call.scale, call.window, call.soft_cap, sinks)


@contextmanager
def hush_transformers() -> Iterator[None]:
    """Suppress progress bars of transformers, and its warnings about defaults."""
    from transformers import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)


def read_sketch(folder: Path) -> tuple[Any, Shape]:
    """Return a model without weights, and its shape.

    Raises:
        Unsupported: if transformers does not have the model, or its structure is not the usual one.
    """
    with hush_transformers():
        model = sketch_model(folder)
    config = model.config.get_text_config()
    try:
        shape = Shape(
            num_layers=len(model.get_decoder().layers),
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            context_length=config.max_position_embeddings,
            is_tied=bool(getattr(config, "tie_word_embeddings", False)),
            eps=0.0,
        )
    except AttributeError as error:
        message = f"the settings of this model are not the usual ones: {error}"
        raise Unsupported(message, "choose another backend") from error
    return model, shape
