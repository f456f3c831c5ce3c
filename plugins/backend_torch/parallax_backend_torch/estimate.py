"""Describes models that no adapter knows, as transformers builds them without weights."""

from __future__ import annotations

import json
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from parallax_backend_torch.attention_hook import AttentionCall, answer_calls
from parallax_backend_torch.estimated import HINT
from parallax_backend_torch.model_slice import sketch_model
from parallax_backend_torch.transformers_model import hush_transformers
from parallax_core.api import ConfigReader, LayerShape, ModelShape, Unsupported

TRIAL = 4
"""The number of tokens of a dry run."""


class Recorder:
    """Answers the calls of attention with numbers that nothing depends on; see `Attender`."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Record a call."""
        self.calls.append(call)
        return call.query[..., :1].expand(*call.query.shape[:-1], call.value.shape[-1])


@lru_cache(maxsize=8)
def read_shape(config: str) -> ModelShape:
    """Return the shape of the model of a config.json.

    Raises:
        Unsupported: if transformers does not build or run it, or a layer keeps something other than keys and values.
    """
    with tempfile.TemporaryDirectory() as folder, hush_transformers():
        Path(folder, "config.json").write_text(config, encoding="utf-8")
        model = sketch_model(Path(folder)).to(torch.bfloat16)  # products of experts have no others
    try:
        return describe_model(model, ConfigReader(json.loads(config)))
    except AttributeError as error:
        raise Unsupported(f"the structure of this model is not the usual one: {error}", HINT) from error


def describe_model(model: Any, reader: ConfigReader) -> ModelShape:  # noqa: ANN401 -- a model of transformers
    """Return the shape of a model without weights; raises Unsupported, or AttributeError for what it lacks."""
    calls, counted = list_calls(model), count_parts(model)
    settings, decoder, head = model.config.get_text_config(), model.get_decoder(), model.get_output_embeddings()
    is_plain = all(call.key.shape == call.value.shape for call in calls)  # a latent is kept as something else
    if not is_plain or [call.layer for call in calls] != list(range(len(decoder.layers))):
        raise Unsupported("a layer of this model keeps something other than keys and values of its own", HINT)
    layers = tuple(describe_layer(call, *counted[call.layer], reader) for call in calls)
    is_tied = head.weight is decoder.embed_tokens.weight
    vocab, hidden = decoder.embed_tokens.weight.shape
    return ModelShape(
        hidden_size=hidden,
        vocab_size=vocab,
        context_length=settings.max_position_embeddings,
        num_heads=calls[0].query.shape[1],
        num_kv_heads=calls[0].key.shape[1],
        head_dim=calls[0].query.shape[2],
        layers=layers,
        before_weights=vocab * hidden,
        after_weights=count(decoder.norm) + (0 if is_tied else count(head)),
        is_tied=is_tied,
    )


def list_calls(model: Any) -> list[AttentionCall]:  # noqa: ANN401 -- a model of transformers
    """Return the calls of attention of a few tokens, of which only the shapes are computed.

    Raises:
        Unsupported: if the code of the model needs more than shapes.
    """
    recorder = Recorder()
    try:
        with answer_calls(recorder), torch.inference_mode(), torch.device("meta"):
            tokens = torch.zeros((1, TRIAL), dtype=torch.long)
            model(input_ids=tokens, position_ids=tokens, use_cache=False)
    except Exception as error:  # the code of a model may raise anything
        raise Unsupported(f"transformers does not run this model without weights: {error}", HINT) from error
    return recorder.calls


def count_parts(model: Any) -> list[tuple[int, int]]:  # noqa: ANN401 -- a model of transformers
    """Return the parameters of each layer, and those of them that belong to experts."""
    found = []
    for layer in model.get_decoder().layers:
        experts = sum(each.numel() for name, each in layer.named_parameters() if ".experts." in f".{name}")
        found.append((count(layer), experts))
    return found


def count(module: torch.nn.Module) -> int:
    """Return the number of parameters of a module."""
    return sum(each.numel() for each in module.parameters())


def describe_layer(call: AttentionCall, weights: int, experts: int, reader: ConfigReader) -> LayerShape:
    """Return a layer by its call of attention and its parameters."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    num = next((reader.count(name) for name in names if reader.raw.get(name)), 0) if experts else 0
    active = next((reader.count(name) for name in ("num_experts_per_tok", "moe_k") if reader.raw.get(name)), num)
    idle = experts * (num - active) // num if num else 0
    return LayerShape(
        kind="window" if call.window else "full",
        weights=weights,
        active_weights=weights - idle,
        kv_width=call.key[0].numel() + call.value[0].numel(),
        window=call.window,
        num_experts=num,
        num_active_experts=active if num else 0,
    )
