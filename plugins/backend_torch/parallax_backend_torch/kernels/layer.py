"""Whole layers in one call of the compiled library: attention with grouped heads, and a gated mixer, as in Llama."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

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
    """A normalisation by the root mean square."""

    weight: torch.Tensor
    """float32 [dim], contiguous."""
    eps: float
    offset: float = 0.0
    """1 where the weight is kept as its difference from 1."""


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class Recipe:
    """The parts of a layer: ``h += back(attend(into(norm(h))))``, then ``h += down(gated(up(norm(h))))``."""

    attention_norm: Scaling
    into: Packed
    """Queries, keys and values one below the other: [(heads + 2 * kv_heads) * dim, width]."""
    back: Packed
    mixer_norm: Scaling
    up: Packed
    """The gate, and what it gates: [2 * inner, width]."""
    down: Packed
    rule: Rule
    query_norm: Scaling | None = None
    """Over each head, before the rotation."""
    key_norm: Scaling | None = None
    gate: Gate = "silu"


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """What layers are told of the step."""

    rows: Rows
    slots: torch.Tensor
    """int64 [tokens]: where the keys and values of the step go."""
    cos: torch.Tensor
    """float32 [tokens, n], contiguous: the angles of ``parts.rotate_halves``."""
    sin: torch.Tensor


class FusedLayer:
    """A layer that can run in one call, alone or with others; made by ``fuse_layer``."""

    def __init__(self, recipe: Recipe, run: ctypes._NamedFuncPointer) -> None:
        self.recipe, self.function = recipe, run
        records = [ctypes.pointer(each.record) for each in list_weights(recipe) if isinstance(each, PanelPacked)]
        scalings = (recipe.attention_norm, recipe.mixer_norm, recipe.query_norm, recipe.key_norm)
        self.record = LayerRecord(*records, *map(_make_norm, scalings), GATES[recipe.gate], 0)

    def make_attention(self, pool: Pool) -> AttentionRecord:
        """Return what the library is told of the attention over a pool.

        Raises:
            ValueError: if the pool is not contiguous, or neither float32 nor bfloat16.
        """
        if pool.keys.dtype not in POOL_KINDS or not pool.keys.is_contiguous() or not pool.values.is_contiguous():
            raise ValueError(f"keys and values are contiguous float32 or bfloat16, not {pool.keys.dtype}")
        return make_record(pool, self.recipe.back.in_features // pool.keys.shape[2], self.recipe.rule)


class FusedLayers:
    """Layers that follow each other, in one call; of one place, and each with a pool of its own.

    Args:
        layers: at least one.
    """

    def __init__(self, layers: Sequence[FusedLayer]) -> None:
        self._layers = tuple(layers)
        self._records = _list_pointers(LayerRecord, [layer.record for layer in layers])
        self._pools: Sequence[Pool] = ()
        self._attentions = _list_pointers(AttentionRecord, [])
        self._dim = 0

    def run(self, hidden: torch.Tensor, pools: Sequence[Pool], place: Place) -> torch.Tensor:
        """Store the step's keys and values, and return the hidden states after the layers.

        Args:
            hidden: float32 [tokens, width], contiguous; left as it is.
            pools: of each layer; contiguous, float32 or bfloat16.
            place: the step.

        Returns:
            float32 [tokens, width].

        Raises:
            ValueError: shapes or dtypes that do not belong together.
        """
        self._tell_pools(pools)
        tokens, count = check_place(hidden, place, self._dim), len(self._layers)
        rope = RopeRecord(place.cos.data_ptr(), place.sin.data_ptr(), place.cos.shape[1])
        out = torch.empty(hidden.shape)
        spare = torch.empty(hidden.shape) if count > 1 else out
        before, between, after = hidden.data_ptr(), spare.data_ptr(), out.data_ptr()
        told = (self._attentions, count, place.rows.record, rope, place.slots.data_ptr())
        self._layers[0].function(self._records, *told, before, tokens, after, between)
        return out

    def _tell_pools(self, pools: Sequence[Pool]) -> None:
        """Find what the library is told of each attention; the pools of a stage stay, so it is done once."""
        if len(pools) == len(self._pools) and all(map(is_same, pools, self._pools)):
            return
        records = [layer.make_attention(pool) for layer, pool in zip(self._layers, pools, strict=True)]
        self._pools, self._attentions = tuple(pools), _list_pointers(AttentionRecord, records)
        self._dim = min(int(pool.keys.shape[2]) for pool in pools)


def fuse_layer(recipe: Recipe, heads: int, dim: int) -> FusedLayer | None:
    """Return the layer of a recipe, or None where it cannot run in one call and its parts must.

    Args:
        recipe: the parts.
        heads: of the queries.
        dim: numbers of a head.
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


def check_place(hidden: torch.Tensor, place: Place, dim: int) -> int:
    """Return the tokens of a step; ``dim`` is that of the smallest head.

    Raises:
        ValueError: shapes or dtypes that do not belong together.
    """
    tokens = int(hidden.shape[0])
    if hidden.dtype != torch.float32 or not hidden.is_contiguous():
        raise ValueError("hidden states are contiguous float32")
    if not is_long(place.slots) or not is_angle(place.cos, dim) or not is_angle(place.sin, dim):
        raise ValueError("slots are contiguous int64, and angles contiguous float32, at most half of a head wide")
    if not place.rows.num_tokens == len(place.slots) == len(place.cos) == len(place.sin) == tokens:
        raise ValueError(f"rows, slots and angles have as many tokens as the hidden states, {tokens}")
    return tokens


def is_long(x: torch.Tensor) -> bool:
    """Whether a tensor is int64 and contiguous."""
    return bool(x.dtype == torch.int64 and x.is_contiguous())


def is_angle(x: torch.Tensor, dim: int) -> bool:
    """Whether a tensor is float32 and contiguous, and its angles are not too many for a head."""
    return bool(x.dtype == torch.float32 and x.is_contiguous() and 2 * x.shape[1] <= dim)


def is_same(left: Pool, right: Pool) -> bool:
    """Whether two pools are the same memory."""
    return left.keys is right.keys and left.values is right.values


def _list_pointers(kind: type[Record], records: Sequence[Record]) -> ctypes.Array[ctypes._Pointer[Record]]:
    """Return the places of records, as an array, which keeps them."""
    return (ctypes.POINTER(kind) * len(records))(*map(ctypes.pointer, records))


def _make_norm(scaling: Scaling | None) -> NormRecord:
    if scaling is None:
        return NormRecord(None, 0.0, 0.0)
    return NormRecord(scaling.weight.data_ptr(), scaling.eps, scaling.offset)
