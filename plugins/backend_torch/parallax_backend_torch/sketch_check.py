"""Finds out without weights whether a model of transformers will load."""

from __future__ import annotations

from typing import Any

import torch

from parallax_backend_torch.estimate import list_calls
from parallax_backend_torch.model_slice import find_scale
from parallax_core.api import Unsupported

HINT = "choose another backend"


def check_sketch(model: Any) -> None:  # noqa: ANN401 -- a model of transformers
    """Refuse a model that `Generic` would refuse when it loads weights, as far as it shows before.

    Raises:
        Unsupported: if it has weights beside layers, embedding, norm and head, or keeps something else than keys and
            values of one width; it is not known of a model that does not run without numbers.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    find_scale(decoder.embed_tokens)
    parts = (decoder.layers, decoder.embed_tokens, decoder.norm, head)
    known = {id(each) for part in parts if part is not None for each in part.parameters()}
    further = next((name for name, each in model.named_parameters() if id(each) not in known), "")
    if further:
        raise Unsupported(f"this model has {further} beside its layers, embedding, norm and head", HINT)
    settings = model.config.get_text_config()
    is_even = getattr(settings, "v_head_dim", None) in (None, getattr(settings, "qk_head_dim", None))
    try:
        calls = list_calls(model.to(torch.bfloat16))  # products of experts have no others
    except Unsupported:
        calls = None
    if calls is not None:
        is_even = all(each.key.shape == each.value.shape for each in calls)
        if [each.layer for each in calls] != list(range(len(decoder.layers))):
            raise Unsupported("some layers of this model have a cache other than keys and values", HINT)
    if not is_even:
        raise Unsupported("keys and values of this model differ in width", HINT)
