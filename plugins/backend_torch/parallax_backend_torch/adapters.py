"""LoRA adapters (arXiv 2106.09685): loaded by key, and added to the products of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from parallax_adapters.store import AdapterStore
from parallax_backend_torch.kernels.adapters import Jobs, Pair, pack_pair
from parallax_backend_torch.kernels.linear import Gate, Packed
from parallax_backend_torch.kernels.parts import multiply_gelu, multiply_silu
from parallax_backend_torch.kernels.rows import WeightKind
from parallax_core.api import BackendFailed, ParallaxError, SeqId, Unsupported
from parallax_sampling_torch.tensors import read_tensor

if TYPE_CHECKING:
    from parallax_adapters.peft_files import LowRank

MOST_KEPT = 64
"""Adapters that a stage keeps in memory, unless more are in use; a server loads fewer by default."""
MOST_COMPOSITIONS = 16
"""Compositions of steps whose jobs are kept: decodes repeat one for as long as no sequence begins or ends."""
EXPERTS = ".experts."
"""In the names of matrices that work on other rows than those of a step."""


@dataclass(frozen=True, slots=True)
class ModulePart:
    """The outputs of one module of the checkpoint within a matrix."""

    name: str
    """Such as ``layers.3.self_attn.q_proj``."""
    start: int
    size: int


@dataclass(frozen=True, eq=False, slots=True)
class LoadedAdapter:
    """The matrices of an adapter that belong to loaded layers, by module."""

    modules: Mapping[str, Pair]

    @property
    def num_bytes(self) -> int:
        """The bytes of its matrices."""
        return sum(pair.num_bytes for pair in self.modules.values())


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of a step with the same adapter."""

    key: str
    start: int
    size: int


class AdapterBatch:
    """The adapters of the rows of a step."""

    def __init__(self, runs: Sequence[Run], loaded: Mapping[str, LoadedAdapter], num_tokens: int) -> None:
        self._runs = [(run, loaded[run.key]) for run in runs]
        self._num_tokens = num_tokens
        self._jobs: dict[AdaptedLinear, Jobs | None] = {}

    def add(self, linear: AdaptedLinear, x: torch.Tensor, out: torch.Tensor) -> None:
        """Add to the product of a matrix what the adapters of the rows add.

        Raises:
            BackendFailed: if the matrix does not work on the rows of the step, one by one.
        """
        if len(x) != self._num_tokens:
            raise BackendFailed(f"{linear.parts[0].name} takes no adapters: it works on other rows than the step has")
        if linear not in self._jobs:
            self._jobs[linear] = self._make_jobs(linear)
        if (jobs := self._jobs[linear]) is not None:
            jobs.add(x, out)
            return
        for run, part, pair in self._list_pairs(linear):
            rows, columns = slice(run.start, run.start + run.size), slice(part.start, part.start + part.size)
            small = functional.linear(x[rows].float(), pair.a.float())
            out[rows, columns] += functional.linear(small.mul_(pair.scale), pair.b.float()).to(out.dtype)

    def _make_jobs(self, linear: AdaptedLinear) -> Jobs | None:
        found = [(run.start, run.size, part.start, pair) for run, part, pair in self._list_pairs(linear)]
        return Jobs(found) if found and all(pair.records for *_, pair in found) else None

    def _list_pairs(self, linear: AdaptedLinear) -> Iterable[tuple[Run, ModulePart, Pair]]:
        for run, adapter in self._runs:
            for part in linear.parts:
                if (pair := adapter.modules.get(part.name)) is not None:
                    yield run, part, pair


class AdaptedLinear:
    """A matrix to whose products adapters are added; see `kernels.linear.Packed`."""

    def __init__(self, base: Packed, parts: Sequence[ModulePart], table: AdapterTable) -> None:
        self.base, self.parts, self._table = base, tuple(parts), table
        self.kind: WeightKind = base.kind
        self.out_features, self.in_features, self.num_bytes = base.out_features, base.in_features, base.num_bytes

    def apply(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply."""
        out = self.base.apply(x, residual)
        if self._table.batch is not None:
            self._table.batch.add(self, x, out)
        return out

    def apply_gated(self, x: torch.Tensor, gate: Gate = "silu") -> torch.Tensor:
        """Multiply, and gate the second half of the outputs by the first."""
        if self._table.batch is None:
            return self.base.apply_gated(x, gate)
        gates, values = self.apply(x).chunk(2, dim=1)
        if x.device.type == "cpu":
            return (multiply_silu if gate == "silu" else multiply_gelu)(gates, values)
        return (functional.silu(gates) if gate == "silu" else functional.gelu(gates, approximate="tanh")) * values

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """Pick rows."""
        return self.base.gather(ids)

    def to_dense(self) -> torch.Tensor:
        """Return the weight in float32; who computes with that does not see adapters, so it takes none."""
        self._table.forget(self)
        return self.base.to_dense()


@contextmanager
def adding(table: AdapterTable | None, batch: AdapterBatch | None) -> Iterator[None]:
    """Add the adapters of a step to the products within the context."""
    if table is None or batch is None:
        yield
        return
    table.batch = batch
    try:
        yield
    finally:
        table.batch = None


def strip(linear: Packed) -> Packed:
    """Return a matrix without adapters, for kernels that run only steps without them."""
    return linear.base if isinstance(linear, AdaptedLinear) else linear


@dataclass(eq=False)
class AdapterTable:
    """The adapters of loaded layers, which all stages of these layers share; belongs to their thread."""

    device: torch.device
    batch: AdapterBatch | None = None
    """The adapters of the current step; None in a step without."""
    list_users: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """For each stage, returns the keys of the adapters of its sequences."""
    _parts: dict[str, tuple[ModulePart, int]] = field(default_factory=dict)
    """Each module that takes adapters, and the width of its input."""
    _loaded: dict[str, LoadedAdapter] = field(default_factory=dict)
    """By key, the least recently opened first."""
    _faults: dict[str, str] = field(default_factory=dict)
    """By key, why an adapter could not be loaded."""
    _batches: dict[tuple[tuple[Run, ...], int], AdapterBatch] = field(default_factory=dict)

    def wrap(self, made: Packed, parts: Sequence[ModulePart]) -> Packed:
        """Return a matrix of some modules of a layer that takes adapters; others as they are."""
        if not all(part.name.startswith("layers.") and EXPERTS not in part.name for part in parts):
            return made
        self._parts |= {part.name: (part, made.in_features) for part in parts}
        return AdaptedLinear(made, parts, self)

    def forget(self, linear: AdaptedLinear) -> None:
        """Take no adapters for a matrix."""
        for part in linear.parts:
            self._parts.pop(part.name, None)

    @property
    def num_bytes(self) -> int:
        """The bytes of all loaded adapters."""
        return sum(each.num_bytes for each in self._loaded.values())

    def load(self, key: str) -> None:
        """Load an adapter unless it is loaded, and drop others; a failure is kept for `find_batch`."""
        found = self._loaded.pop(key, None)
        try:
            self._loaded[key] = self._read(key) if found is None else found
            self._faults.pop(key, None)
        except ParallaxError as error:
            self._faults[key] = error.message
        except Exception as error:  # noqa: BLE001 -- whatever it is, only the requests for this adapter may end
            self._faults[key] = f"{type(error).__name__}: {error}"
        if found is None:
            self._drop(key)

    def find_batch(self, rows: Sequence[tuple[SeqId, str, int]]) -> AdapterBatch | None:
        """Return the adapters of the rows of a step, or None if no row asks for any.

        Args:
            rows: for each, its sequence, the key of its adapter or an empty text, and its number of tokens.

        Raises:
            BackendFailed: if one could not be loaded; it names the sequences that need it.
        """
        if not any(key for _, key, _ in rows):
            return None
        for key in {key for _, key, _ in rows if key not in self._loaded and key}:
            reason = self._faults.get(key, "it is not loaded")
            at_fault = [seq for seq, other, _ in rows if other == key]
            raise BackendFailed(f"the adapter {key} cannot be used: {reason}", "load it again", at_fault)
        composition = runs, num_tokens = _join_runs(rows)
        batch = self._batches.pop(composition, None) or AdapterBatch(runs, self._loaded, num_tokens)
        self._batches[composition] = batch
        if len(self._batches) > MOST_COMPOSITIONS:
            del self._batches[next(iter(self._batches))]
        return batch

    def _read(self, key: str) -> LoadedAdapter:
        adapter, modules = AdapterStore().open(key), {}
        layers = {_name_layer(name) for name in self._parts}
        for name, matrices in adapter.modules.items():
            if name in self._parts:
                modules[name] = self._read_pair(name, matrices)
            elif _name_layer(name) in layers:
                raise Unsupported(f"it changes {name}, which takes no adapters in this model on this backend")
        return LoadedAdapter(modules)

    def _read_pair(self, name: str, matrices: LowRank) -> Pair:
        part, width = self._parts[name]
        shapes = (matrices.a.shape[1], matrices.b.shape[0])
        if shapes != (width, part.size):
            raise Unsupported(f"{name} has {width} inputs and {part.size} outputs in this model, and {shapes} in it")
        a, b = read_tensor(matrices.a), read_tensor(matrices.b)
        if self.device.type == "cpu":
            return pack_pair(a, b, matrices.scale)
        return Pair(a.to(self.device, copy=True), b.to(self.device, copy=True), matrices.scale)

    def _drop(self, newest: str) -> None:
        """Drop adapters without a sequence: those whose files are gone, and the least recently opened of too many."""
        used = {newest}.union(*(list_keys() for list_keys in self.list_users))
        free, store = [key for key in self._loaded if key not in used], AdapterStore()
        gone = [key for key in free if not store.has(key)]
        old = [key for key in free if key not in gone][: max(0, len(self._loaded) - len(gone) - MOST_KEPT)]
        for key in (*gone, *old):
            del self._loaded[key]
        self._faults = {key: reason for key, reason in self._faults.items() if key in used}
        self._batches.clear()


def _join_runs(rows: Sequence[tuple[SeqId, str, int]]) -> tuple[tuple[Run, ...], int]:
    """Return the runs of rows with adapters, and the number of all tokens."""
    runs: list[Run] = []
    place = 0
    for _, key, count in rows:
        if key and runs and runs[-1].key == key and runs[-1].start + runs[-1].size == place:
            runs[-1] = Run(key, runs[-1].start, runs[-1].size + count)
        elif key:
            runs.append(Run(key, place, count))
        place += count
    return tuple(runs), place


def _name_layer(module: str) -> str:
    return ".".join(module.split(".")[:2])
