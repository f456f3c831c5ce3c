"""Makes models of transformers attend over pages, by an entry in its registry of attention functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch

NAME = "parallax"


@dataclass(frozen=True, eq=False, slots=True)
class AttentionCall:
    """A layer's call of attention, for the tokens of all rows."""

    layer: int
    """The index of the layer in the whole model."""
    query: torch.Tensor
    """[tokens, heads, width]."""
    key: torch.Tensor
    """[tokens, heads of keys, width]."""
    value: torch.Tensor
    """[tokens, heads of keys, width]."""
    scale: float
    window: int
    """The number of tokens that a token sees, including itself; 0: all."""
    soft_cap: float
    sinks: torch.Tensor | None


class Attender(Protocol):
    """Answers calls."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the result of attention: [tokens, heads, width]."""


_current: ContextVar[Attender] = ContextVar("attender")


def register_attention() -> None:
    """Register the attention function; idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, run_attention)


@contextmanager
def answer_calls(attender: Attender) -> Iterator[None]:
    """Make ``attender`` compute the attention of models in this thread, inside the ``with`` block."""
    token = _current.set(attender)
    try:
        yield
    finally:
        _current.reset(token)


def run_attention(
    module: Any,  # noqa: ANN401 -- the attention of any model
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: object,
    **options: Any,  # noqa: ANN401 -- depends on the model
) -> tuple[torch.Tensor, None]:
    """Compute a layer's attention of [1, heads, tokens, width] tensors; returns [1, tokens, heads, width].

    Raises:
        ValueError: if the attention is not causal.
    """
    if not getattr(module, "is_causal", True) or options.get("is_causal") is False:
        raise ValueError("a layer attends to later tokens")
    queries, keys, values = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    scale = options.get("scaling")
    call = AttentionCall(
        layer=module.layer_idx,
        query=queries,
        key=keys,
        value=values,
        scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
        window=int(options.get("sliding_window") or 0),
        soft_cap=float(options.get("softcap") or 0.0),
        sinks=options.get("s_aux"),
    )
    return _current.get().attend(call)[None], None
