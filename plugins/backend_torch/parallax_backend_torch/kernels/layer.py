"""Runs whole layers in one call of the compiled library: grouped-query attention and gated MLP."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from parallax_backend_torch.kernels.adapters import AdapterStep
from parallax_backend_torch.kernels.attention import MOST_SHARED, POOL_KINDS, WIDEST, make_record
from parallax_backend_torch.kernels.layout import PANEL
from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.linear import Gate, Packed
from parallax_backend_torch.kernels.paging import Pool, Rows, Rule
from parallax_backend_torch.kernels.panels import GATES, PanelPacked
from parallax_backend_torch.kernels.signature import AttentionRecord, LayerRecord, NormRecord, RopeRecord

Record = TypeVar("Record", bound=ctypes.Structure)


@dataclass(frozen=True, eq=False, slots=True)
class Scaling:
    """A root mean square norm."""

    weight: torch.Tensor
    """float32 [dim], contiguous."""
    eps: float
    offset: float = 0.0
    """1 if the weight is stored as its difference from 1, else 0."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Recipe:
    """The parts of a layer: ``h += back(attend(into(norm(h))))``, then ``h += down(gated(up(norm(h))))``."""

    attention_norm: Scaling
    into: Packed
    """Queries, keys and values, stacked by rows: [(heads + 2 * kv_heads) * dim, width]."""
    back: Packed
    mixer_norm: Scaling
    up: Packed
    """Gate and up, stacked by rows: [2 * inner, width]."""
    down: Packed
    rule: Rule
    query_norm: Scaling | None = None
    """The norm of each query head, before rope; `key_norm` likewise for keys."""
    key_norm: Scaling | None = None
    gate: Gate = "silu"
    adapted: tuple[int, int, int, int] = (-1, -1, -1, -1)
    """The numbers of the matrices for adapters, in the order of `list_weights`; negative: it takes none."""


@dataclass(frozen=True, eq=False, slots=True)
class StepPositions:
    """The positions of a step's tokens."""

    rows: Rows
    slots: torch.Tensor
    """int64 [tokens]: the slots of the step's keys and values."""
    cos: torch.Tensor
    """float32 [tokens, n], contiguous: the cosines for ``parts.rotate_halves``; ``sin`` likewise."""
    sin: torch.Tensor


class FusedLayer:
    """A layer that runs in one call, alone or with others; made by ``fuse_layer``."""

    def __init__(self, recipe: Recipe, run: ctypes._NamedFuncPointer) -> None:
        self.recipe, self.function = recipe, run
        records = [ctypes.pointer(each.record) for each in list_weights(recipe) if isinstance(each, PanelPacked)]
        scalings = (recipe.attention_norm, recipe.mixer_norm, recipe.query_norm, recipe.key_norm)
        self.record = LayerRecord(*records, *map(_make_norm, scalings), GATES[recipe.gate], recipe.adapted, 0)

    def make_attention(self, pool: Pool) -> AttentionRecord:
        """Return the library's record of the attention over a pool.

        Raises:
            ValueError: if the pool is not contiguous, or has another dtype than the kernels know.
        """
        if pool.keys.dtype not in POOL_KINDS or not pool.is_contiguous:
            raise ValueError(f"keys and values must be contiguous float32, bfloat16 or int8, not {pool.keys.dtype}")
        return make_record(pool, self.recipe.back.in_features // pool.keys.shape[2], self.recipe.rule)


class FusedLayers:
    """Consecutive layers in one call, at the same positions, each with its own pool.

    Args:
        layers: one or more layers.
    """

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        self._layers = tuple(layers)
        self._records = _list_pointers(LayerRecord, [layer.record for layer in layers])
        self._pools: Sequence[Pool] = ()
        self._attentions = _list_pointers(AttentionRecord, [])
        self._dim = 0

    def run(
        self, hidden: torch.Tensor, pools: Sequence[Pool], place: StepPositions, adapters: AdapterStep | None = None
    ) -> torch.Tensor:
        """Store the step's keys and values, and return the hidden states after the layers.

        Args:
            hidden: float32 [tokens, width], contiguous; not changed.
            pools: the pool of each layer; contiguous, float32, bfloat16 or int8.
            place: the positions of the step.
            adapters: those of its rows.

        Returns:
            float32 [tokens, width].

        Raises:
            ValueError: shapes or dtypes that do not fit together.
        """
        self._tell_pools(pools)
        tokens, count = check_place(hidden, place, self._dim), len(self._layers)
        rope = RopeRecord(place.cos.data_ptr(), place.sin.data_ptr(), place.cos.shape[1])
        out = torch.empty(hidden.shape)
        spare = torch.empty(hidden.shape) if count > 1 else out
        before, between, after = hidden.data_ptr(), spare.data_ptr(), out.data_ptr()
        told = (self._attentions, count, place.rows.record, rope, place.slots.data_ptr())
        added = None if adapters is None else adapters.record
        self._layers[0].function(self._records, *told, before, tokens, after, between, added)
        return out

    def _tell_pools(self, pools: Sequence[Pool]) -> None:
        """Make the records of each attention; once, since the pools of a stage do not change."""
        if len(pools) == len(self._pools) and all(map(is_same, pools, self._pools)):
            return
        records = [layer.make_attention(pool) for layer, pool in zip(self._layers, pools, strict=True)]
        self._pools, self._attentions = tuple(pools), _list_pointers(AttentionRecord, records)
        self._dim = min(int(pool.keys.shape[2]) for pool in pools)


def fuse_layer(recipe: Recipe, heads: int, dim: int) -> FusedLayer | None:
    """Return the layer of a recipe, or None if it has to run part by part.

    Args:
        recipe: the parts.
        heads: the number of query heads.
        dim: the width of a head.
    """
    library = find_library()
    if library is None or not all(isinstance(each, PanelPacked) for each in list_weights(recipe)):
        return None
    kv_heads, rest = divmod(recipe.into.out_features - heads * dim, 2 * dim)
    fits = not rest and kv_heads > 0 and heads % kv_heads == 0 and heads // kv_heads <= MOST_SHARED
    if not fits or dim % 8 or dim > WIDEST or recipe.up.out_features // 2 % PANEL:
        return None
    return FusedLayer(recipe, library.plx_layers)


def list_weights(recipe: Recipe) -> tuple[Packed, Packed, Packed, Packed]:
    """Return the weights, in the order of ``plx::Layer``."""
    return recipe.into, recipe.back, recipe.up, recipe.down


def check_place(hidden: torch.Tensor, place: StepPositions, dim: int) -> int:
    """Return the number of tokens of a step; ``dim`` is the width of the smallest head.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    tokens = int(hidden.shape[0])
    if hidden.dtype != torch.float32 or not hidden.is_contiguous():
        raise ValueError("hidden states must be contiguous float32")
    if not is_long(place.slots) or not is_angle(place.cos, dim) or not is_angle(place.sin, dim):
        raise ValueError("slots must be contiguous int64, and cos and sin contiguous float32, at most half a head wide")
    if not place.rows.num_tokens == len(place.slots) == len(place.cos) == len(place.sin) == tokens:
        raise ValueError(f"rows, slots, cos and sin must have as many tokens as the hidden states, {tokens}")
    return tokens


def is_long(x: torch.Tensor) -> bool:
    """Whether a tensor is int64 and contiguous."""
    return bool(x.dtype == torch.int64 and x.is_contiguous())


def is_angle(x: torch.Tensor, dim: int) -> bool:
    """Whether a tensor is float32 and contiguous, and at most half a head wide."""
    return bool(x.dtype == torch.float32 and x.is_contiguous() and 2 * x.shape[1] <= dim)


def is_same(left: Pool, right: Pool) -> bool:
    """Whether two pools are the same memory."""
    return left.keys is right.keys and left.values is right.values


def _list_pointers(kind: type[Record], records: Sequence[Record]) -> ctypes.Array[ctypes._Pointer[Record]]:
    """Return an array of pointers to records, which keeps the records alive."""
    return (ctypes.POINTER(kind) * len(records))(*map(ctypes.pointer, records))


def _make_norm(scaling: Scaling | None) -> NormRecord:
    if scaling is None:
        return NormRecord(None, 0.0, 0.0)
    return NormRecord(scaling.weight.data_ptr(), scaling.eps, scaling.offset)
