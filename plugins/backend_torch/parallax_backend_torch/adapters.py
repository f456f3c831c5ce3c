"""LoRA adapters (arXiv 2106.09685): loaded by key, and added to the products of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

from parallax_adapters.kept import KeptAdapters
from parallax_adapters.peft_experts import EXPERTS, spell_module
from parallax_backend_torch.kernels.adapters import AdapterStep, PackedAdapter, Pair, pack_pair
from parallax_backend_torch.kernels.library import find_library
from parallax_backend_torch.kernels.linear import Gate, Packed
from parallax_backend_torch.kernels.parts import multiply_gelu, multiply_silu
from parallax_backend_torch.kernels.rows import WeightKind
from parallax_core.api import BackendFailed, LayerRange, Machine, SeqId
from parallax_sampling_torch.tensors import read_tensor

if TYPE_CHECKING:
    from parallax_adapters.peft_files import LowRank

MOST_COMPOSITIONS = 16
"""Compositions of steps whose jobs are kept: decodes repeat one for as long as no sequence begins or ends."""


class ExpertRows(NamedTuple):
    """The rows that an expert works on."""

    tokens: torch.Tensor
    """Rows of the step, int64, in the order of the experts that they go to."""
    part: slice
    """Those of the expert among them."""


ROWS: ContextVar[ExpertRows | None] = ContextVar("rows", default=None)
"""The rows that matrices of an expert work on now."""


@dataclass(frozen=True, slots=True)
class ModulePart:
    """The outputs of one module of the checkpoint within a matrix."""

    name: str
    """Such as ``layers.3.self_attn.q_proj``; see `spell_module`."""
    start: int
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class LoadedAdapter:
    """The matrices of an adapter that belong to loaded layers, by module."""

    modules: Mapping[str, Pair]
    packed: PackedAdapter | None = None
    """The same for the library; None where torch computes."""
    has_experts: bool = False
    """Whether it changes experts."""

    @property
    def num_bytes(self) -> int:
        """The bytes of its matrices."""
        return sum(pair.num_bytes for pair in self.modules.values())


class AdapterBatch:
    """The adapters of the rows of a step.

    Args:
        groups: each adapter, with the places of its rows in the step.
        num_tokens: the rows of the step.
    """

    def __init__(self, groups: Sequence[tuple[LoadedAdapter, Sequence[int]]], num_tokens: int) -> None:
        self._num_tokens, self._all = num_tokens, groups
        self.has_experts = any(adapter.has_experts for adapter, _ in groups)
        """Whether one of them changes experts."""
        self._owners: torch.Tensor | None = None
        self._chosen: tuple[ExpertRows, AdapterBatch] | None = None
        packed = [(adapter.packed, places) for adapter, places in groups if adapter.packed]
        self.packed = AdapterStep(packed) if packed else None
        """The same for the library; None where torch computes."""
        self._groups = [(adapter, torch.tensor(places)) for adapter, places in groups if not adapter.packed]

    def add(self, linear: AdaptedLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to the product of a matrix what the adapters of the rows add.

        Raises:
            BackendFailed: if the matrix does not work on the rows of the step, one by one, nor on those of `choosing`.
        """
        rows = ROWS.get() if linear.is_expert else None
        (self if rows is None else self._choose(rows)).add_to(linear, x, out)

    def _choose(self, rows: ExpertRows) -> AdapterBatch:
        """Return the adapters of the rows of an expert."""
        if self._chosen is None or self._chosen[0] is not rows:
            if self._owners is None:
                self._owners = torch.full((self._num_tokens,), -1)
                for number, (_, places) in enumerate(self._all):
                    self._owners[torch.tensor(places)] = number
            owners = self._owners[rows.tokens[rows.part].cpu()].tolist()
            found: dict[int, list[int]] = {}
            for place, owner in enumerate(owners):
                found.setdefault(owner, []).append(place)
            found.pop(-1, None)
            self._chosen = (
                rows,
                AdapterBatch([(self._all[owner][0], some) for owner, some in found.items()], len(owners)),
            )
        return self._chosen[1]

    def add_to(self, linear: AdaptedLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        """Do the same for a matrix that works on these rows; see `add`."""
        if len(x) != self._num_tokens:
            raise BackendFailed(f"{linear.parts[0].name} takes no adapters: it works on other rows than the step has")
        if self.packed is not None:
            self.packed.add(linear.number, x, out)
        for adapter, places in self._groups:
            given = x[places.to(x.device)].float()
            for part in linear.parts:
                if (pair := adapter.modules.get(part.name)) is not None:
                    small = functional.linear(given, pair.a.float()).mul_(pair.scale)
                    added = functional.linear(small, pair.b.float()).to(out.dtype)
                    out[:, part.start : part.start + part.size].index_add_(0, places.to(x.device), added)


class AdaptedLinear:
    """A matrix to whose products adapters are added; see `kernels.linear.Packed`."""

    def __init__(self, base: Packed, parts: Sequence[ModulePart], table: AdapterTable, number: int) -> None:
        self.base, self.parts, self.table, self.number = base, tuple(parts), table, number
        self.is_expert = EXPERTS in parts[0].name
        self.kind: WeightKind = base.kind
        self.out_features, self.in_features, self.num_bytes = base.out_features, base.in_features, base.num_bytes

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        out = self.base.apply(x, residual)
        if (batch := self._find_batch()) is not None:
            batch.add(self, x, out)
        return out

    def apply_gated(self, x: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
        """Multiply, and gate the second half of the outputs by the first."""
        if self._find_batch() is None:
            return self.base.apply_gated(x, gate)
        gates, values = self.apply(x).chunk(2, dim=1)
        if x.device.type == "cpu":
            return (multiply_silu if gate == "silu" else multiply_gelu)(gates, values)
        return (functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")) * values

    def _find_batch(self) -> AdapterBatch | None:
        batch = self.table.batch
        return batch if batch is not None and (batch.has_experts or not self.is_expert) else None

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        return self.base.gather(ids)

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32; who computes with that does not see adapters, so it takes none."""
        self.table.forget(self)
        return self.base.to_dense()


@contextmanager
def adding(table: AdapterTable, batch: AdapterBatch) -> Iterator[None]:
    """Add the adapters of a step to the products within the context."""
    table.batch = batch
    try:
        yield
    finally:
        table.batch = None


@contextmanager
def choosing(rows: ExpertRows) -> Iterator[None]:
    """Add to the products of an expert within the context what the adapters of its rows add."""
    token = ROWS.set(rows)
    try:
        yield
    finally:
        ROWS.reset(token)


def strip(linear: Packed) -> Packed:
    """Return a matrix without adapters, for kernels that add them themselves, or run only steps without them."""
    return linear.base if isinstance(linear, AdaptedLinear) else linear


def find_table(*matrices: Packed) -> AdapterTable | None:
    """Return the table of the first matrix that takes adapters."""
    return next((each.table for each in matrices if isinstance(each, AdaptedLinear)), None)


def number_matrix(linear: Packed) -> int:
    """Return the number of a matrix in its table, -1 if it takes no adapters."""
    return linear.number if isinstance(linear, AdaptedLinear) else -1


class AdapterTable:
    """The matrices of loaded layers that take adapters, and the adapters; all stages of these layers share them.

    Args:
        layers: the layers.
        device: of the layers.
        dtype: of the matrices of adapters, as they are kept.
    """

    def __init__(self, layers: LayerRange, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        free = Machine().free_memory if device.type == "cpu" else lambda: int(torch.cuda.mem_get_info(device)[0])
        self.kept = KeptAdapters(self._convert, layers, any_thread=True, item_bytes=dtype.itemsize, find_free=free)
        self.batch: AdapterBatch | None = None
        """The adapters of the current step; None in a step without."""
        self._matrices: list[Sequence[ModulePart]] = []
        """The parts of each matrix that takes adapters, by its number."""
        self._batches: dict[tuple[tuple[str, int], ...], AdapterBatch] = {}

    def wrap(self, made: Packed, parts: Sequence[ModulePart]) -> Packed:
        """Return a matrix of some modules of a layer that takes adapters; others as they are."""
        if not all(part.name.startswith("layers.") for part in parts):
            return made
        parts = [replace(part, name=spell_module(part.name)) for part in parts]
        self.kept.sizes |= {part.name: (made.in_features, part.size) for part in parts}
        self._matrices.append(parts)
        return AdaptedLinear(made, parts, self, len(self._matrices) - 1)

    def forget(self, linear: AdaptedLinear) -> None:
        """Take no adapters for a matrix."""
        for part in linear.parts:
            self.kept.sizes.pop(part.name, None)

    def take_room(self, free: float) -> float:
        """Return what is left of free memory beside that kept for adapters; raises ParallaxError if too little is."""
        return self.kept.room.take(free, self.kept.room.weigh(self._dtype.itemsize) * self.kept.sides)

    @property
    def num_bytes(self) -> int:
        """The bytes of all loaded adapters."""
        return sum(each.num_bytes for each in self.kept.loaded.values())

    def load(self, key: str) -> None:
        """Load an adapter unless it is loaded; see `KeptAdapters.load`."""
        if self.kept.load(key):
            self._batches.clear()

    def find_batch(self, rows: Sequence[tuple[SeqId, str, int]]) -> AdapterBatch | None:
        """Return the adapters of the rows of a step, or None if no row asks for any.

        Args:
            rows: for each, its sequence, the key of its adapter or an empty text, and its number of tokens.

        Raises:
            BackendFailed: if one could not be loaded; it names the sequences that need it.
        """
        if not any(key for _, key, _ in rows):
            return None
        self.kept.check([(seq, key) for seq, key, _ in rows])
        composition = tuple((key, count) for _, key, count in rows)
        batch = self._batches.pop(composition, None) or self._make_batch(composition)
        self._batches[composition] = batch
        if len(self._batches) > MOST_COMPOSITIONS:
            del self._batches[next(iter(self._batches))]
        return batch

    def _convert(self, matrices: Mapping[str, LowRank]) -> LoadedAdapter:
        modules = {name: self._make_pair(each) for name, each in matrices.items()}
        is_packed = self._device.type == "cpu" and find_library() is not None
        has_experts = any(EXPERTS in name for name in modules)
        return LoadedAdapter(modules, self._pack(modules) if is_packed else None, has_experts)

    def _pack(self, modules: Mapping[str, Pair]) -> PackedAdapter:
        def list_pairs(parts: Sequence[ModulePart]) -> list[tuple[int, Pair]]:
            return [(part.start, modules[part.name]) for part in parts if part.name in modules]

        return PackedAdapter([list_pairs(parts) for parts in self._matrices])

    def _make_pair(self, matrices: LowRank) -> Pair:
        a, b = (read_tensor(each).to(self._dtype) for each in (matrices.a, matrices.b))
        if self._device.type == "cpu":
            return pack_pair(a, b, matrices.scale)
        return Pair(a.to(self._device, copy=True), b.to(self._device, copy=True), matrices.scale, len(b))

    def _make_batch(self, composition: Sequence[tuple[str, int]]) -> AdapterBatch:
        places: dict[str, list[int]] = {}
        place = 0
        for key, count in composition:
            places.setdefault(key, []).extend(range(place, place + count))
            place += count
        places.pop("", None)
        return AdapterBatch([(self.kept.loaded[key], some) for key, some in places.items()], place)
