"""The matrices of LoRA adapters on MLX, those of all adapters in one array for each module.

Adapters are written into spare places of the arrays by whatever thread loads them, through the memory of the arrays and
not by MLX: steps go on meanwhile, and read other places.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parallax_adapters.peft_experts import EXPERTS
from parallax_adapters.peft_files import LowRank, to_floats
from parallax_backend_mlx.runtime import mx

FIRST_PLACES = 4
"""The places of new arrays: that of no adapter, and some for adapters."""
ALL = "*"
"""In the name of a module, stands for the number of an expert: the matrices of all are in one array."""
Bits = npt.NDArray[np.uint16 | np.float32]


@dataclass(frozen=True, eq=False, slots=True)
class ModuleShape:
    """A module that takes adapters."""

    inputs: int
    outputs: int
    experts: int = 1


class Stack:
    """The matrices of a module, of all adapters, with zeros for those that do not change it.

    Args:
        shape: of the module.
        places: the number of adapters, with that of no adapter.
        rank: the largest rank.
        dtype: of the matrices.
    """

    def __init__(self, shape: ModuleShape, places: int, rank: int, dtype: mx.Dtype) -> None:
        self.shape, self.places, self.rank, self._dtype = shape, places, rank, dtype
        count, kind = places * shape.experts, np.float32 if dtype == mx.float32 else np.uint16
        self._a = mx.array(np.zeros((count, shape.inputs, rank), kind))
        self._b = mx.array(np.zeros((count, rank, shape.outputs), kind))
        split = (places, shape.experts)
        self._written: tuple[Bits, Bits] = tuple(  # type: ignore[assignment]
            np.asarray(memoryview(each)).reshape(*split, *each.shape[1:])  # type: ignore[arg-type]
            for each in (self._a, self._b)
        )
        self._changed: set[int] = set()
        """The places that are not zeros."""

    @property
    def pair(self) -> tuple[mx.array, mx.array]:
        """The matrices, [places * experts, inputs, rank] and [places * experts, rank, outputs]."""
        return self._a.view(self._dtype), self._b.view(self._dtype)

    def write(self, place: int, matrices: Mapping[int, LowRank]) -> None:
        """Write the matrices of an adapter, by the number of their expert."""
        a, b = (each[place] for each in self._written)
        if place in self._changed:
            a[:], b[:] = 0, 0
        for expert, each in matrices.items():
            self._changed.add(place)
            a[expert, :, : each.rank] = encode(to_floats(each.a).T, self._dtype)
            b[expert, : each.rank] = encode(to_floats(each.b).T * np.float32(each.scale), self._dtype)

    def copy(self, places: int, rank: int) -> Stack:
        """Return a larger one with the same adapters."""
        made = Stack(self.shape, places, rank, self._dtype)
        (a, b), (old_a, old_b) = made._written, self._written
        a[: self.places, :, :, : self.rank], b[: self.places, :, : self.rank] = old_a, old_b
        made._changed = set(self._changed)
        return made


class PlacedAdapter:
    """An adapter in the stacks; its place is free when nothing refers to it any more."""

    def __init__(self, stacks: AdapterStacks, place: int) -> None:
        self._stacks, self.place = stacks, place

    def __del__(self) -> None:
        """Give back the place: without a lock, as this may happen at any time."""
        self._stacks.free.append(self.place)


class AdapterStacks:
    """The stacks of all modules of a network. Adapters may be placed by any thread while others read the stacks.

    Args:
        dtype: of the matrices.
    """

    def __init__(self, dtype: mx.Dtype) -> None:
        self._dtype, self._changing = dtype, threading.Lock()
        self.shapes: dict[str, ModuleShape] = {}
        """By the name of the module, with `ALL` for the number of an expert."""
        self.by_module: Mapping[str, Stack] = {}
        """Those of the modules that an adapter changes."""
        self._places = FIRST_PLACES
        self.free = list(range(1, FIRST_PLACES))
        """The places that no adapter has; the place 0 is of no adapter."""
        self.made = 0
        """How many stacks were made, also in place of others."""

    def place(self, matrices: Mapping[str, LowRank], most: int = 0) -> PlacedAdapter:
        """Write an adapter to a place of its own.

        Args:
            matrices: by module.
            most: the adapters that there is to be room for.
        """
        modules: dict[str, dict[int, LowRank]] = {}
        for name, each in matrices.items():
            module, expert = find_module(name)
            modules.setdefault(module, {})[expert] = each
        with self._changing:
            if len(self.free) == self._places - 1:  # nothing is placed: memory of larger ones comes back
                self._resize(max(FIRST_PLACES, most))
            if not self.free:
                self._enlarge()
            placed = PlacedAdapter(self, self.free.pop())
            for name, some in modules.items():
                self._fit(name, max(each.rank for each in some.values()))
            for name, stack in self.by_module.items():
                stack.write(placed.place, modules.get(name, {}))
        return placed

    def _resize(self, places: int) -> None:
        self.by_module, self._places, self.free[:] = {}, places, range(1, places)

    def _enlarge(self) -> None:
        first, self._places = self._places, self._places + self._places // 2
        for name, stack in self.by_module.items():
            self._keep(name, stack.copy(self._places, stack.rank))
        self.free += range(first, self._places)

    def _fit(self, name: str, rank: int) -> None:
        """See to it that a module has a stack, with room for a rank."""
        stack = self.by_module.get(name)
        if stack is None:
            self._keep(name, Stack(self.shapes[name], self._places, rank, self._dtype))
        elif stack.rank < rank:
            self._keep(name, stack.copy(self._places, rank))

    def _keep(self, name: str, stack: Stack) -> None:
        self.by_module = {**self.by_module, name: stack}  # steps read the old one meanwhile
        self.made += 1


def find_module(name: str) -> tuple[str, int]:
    """Return the name of a module in `AdapterStacks.shapes`, and the number of its expert, 0 without experts."""
    layer, is_expert, rest = name.partition(EXPERTS)
    if not is_expert:
        return name, 0
    number, _, matrix = rest.partition(".")
    return f"{layer}{EXPERTS}{ALL}.{matrix}", int(number)


def encode(values: npt.NDArray[np.float32], dtype: mx.Dtype) -> Bits:
    """Return numbers as they lie in the memory of an array of a dtype: rounded to nearest, ties to even."""
    if dtype == mx.float32:
        return values
    if dtype == mx.float16:
        return values.astype(np.float16).view(np.uint16)
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
