"""A weight that is stored as several tensors: codes, scales, and what else its format needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import EllipsisType

import numpy as np

from parallax_core.api import ParallaxError, Tensor
from parallax_formats.numbers import Array, Floats, view_array, widen

Index = slice | tuple[slice | int, ...] | EllipsisType
MATRIX = 2
INTEGERS = ("int32", "uint32", "int64")
HINT = "the files may be damaged, or of another model: fetch the model again"


@dataclass(frozen=True, slots=True)
class Parts:
    """The tensors of one weight."""

    stem: str
    """The name of the layer in the checkpoint, such as ``model.layers.0.mlp.up_proj``."""
    tensors: Mapping[str, Tensor]
    """By their last word, such as ``qweight``."""

    def view(self, word: str) -> Array:
        """Return a tensor that exists; see `view_array`."""
        return view_array(self.tensors[word])

    def widen(self, word: str, part: Index = ...) -> Floats:
        """Return a tensor that exists in float32, or a part of it: only that is converted."""
        return widen(self.tensors[word].dtype, self.view(word)[part])

    def shape(self, word: str) -> tuple[int, ...]:
        """Return the shape of a tensor that exists."""
        return self.tensors[word].shape

    def require_matrices(self, what: str, *words: str) -> None:
        """Refuse the weight, unless these tensors have at least two axes, and none of its tensors is empty."""
        self.require(all(len(self.shape(word)) >= MATRIX for word in words), what)
        self.require(all(math.prod(tensor.shape) for tensor in self.tensors.values()), what)

    def require_integers(self, what: str, *words: str) -> None:
        """Refuse the weight, unless those of these tensors that it has are integers of 32 or 64 bits."""
        self.require(all(self.tensors[word].dtype in INTEGERS for word in words if word in self.tensors), what)

    def require(self, is_right: bool, what: str) -> None:  # noqa: FBT001 -- reads as a sentence
        """Refuse the weight, unless it is as its format defines.

        Raises:
            ParallaxError: naming the weight and the shapes of its tensors.
        """
        if not is_right:
            shapes = ", ".join(f"{word} {tensor.dtype} {list(tensor.shape)}" for word, tensor in self.tensors.items())
            raise ParallaxError(f"the weight {self.stem} is not {what}: {shapes}", HINT)


@dataclass(frozen=True, slots=True)
class Grid:
    """The form of a weight that is scale * code + low, in groups of inputs that follow one another."""

    bits: int
    """Of a code, from 0 on."""
    group: int
    """Inputs of a group."""
    has_low: bool = True
    """Whether ``low`` is not always ``-2**(bits - 1) * scale``, by which the codes in the middle are 0."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Rows of a weight with a `Grid`."""

    codes: Array
    """uint8 [rows, in]."""
    scales: Floats
    """[rows, groups]."""
    lows: Floats
    """[rows, groups]."""


@dataclass(frozen=True, slots=True)
class Matrix(ABC):
    r"""A weight of shape [\*, out, in]; a stack of matrices, such as those of experts, has more axes."""

    parts: Parts
    shape: tuple[int, ...] = field(init=False)
    """The shape of the weight, whatever that of its tensors."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Floats:
        """Return rows ``start`` to ``stop`` in float32, [rows, in]; the rows of a stack are counted through."""

    @property
    def grid(self) -> Grid | None:
        """The form of its codes, if `read_codes` gives them."""
        return None

    def read_codes(self, start: int, stop: int) -> Codes:
        """Return rows ``start`` to ``stop`` as codes; only with a `grid`."""
        raise NotImplementedError(f"{type(self).__name__} of {self.parts.stem} has no grid: {start} to {stop}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors in the checkpoint."""
        return tuple(f"{self.parts.stem}.{word}" for word in self.parts.tensors)

    @property
    def num_rows(self) -> int:
        """The number of rows, those of all matrices of a stack."""
        return math.prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        """The bytes of its tensors."""
        return sum(memoryview(tensor.data).nbytes for tensor in self.parts.tensors.values())

    def _split(self, start: int, stop: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield the matrices of a stack that have the rows ``start`` to ``stop``: place, first row and end in each."""
        height = self.shape[-2]
        for number in range(start // height, -(-stop // height)):
            place = tuple(map(int, np.unravel_index(number, self.shape[:-2]))) if self.shape[:-2] else ()
            yield place, max(start - number * height, 0), min(stop - number * height, height)


def split_name(name: str) -> tuple[str, str]:
    """Return the name of a layer and the word of its tensor.

    The word is the last one, or, as bitsandbytes names what belongs to a weight, such as ``weight.absmax``.
    """
    stem, found, rest = name.rpartition(".weight.")
    if found:
        return stem, f"weight.{rest}"
    stem, _, word = name.rpartition(".")
    return stem, word
