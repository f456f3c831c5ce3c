"""The tensors of a stage in the files of its model: mapped, read once, and their memory returned."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from parallax_backend_torch.adapters import ModulePart
from parallax_backend_torch.config import Config
from parallax_backend_torch.grid_rows import GridRows, find_product
from parallax_backend_torch.kernels.ggml import LAYOUTS, Form, find_layout, read_blocks
from parallax_backend_torch.kernels.quantize import Quantized, join_rows
from parallax_backend_torch.kernels.rows import BlockRows, Rows, TensorRows, WeightKind, convert_part
from parallax_core.api import (
    LayerRange,
    ParallaxError,
    Progress,
    Tensor,
    Unsupported,
    read_config,
    read_tensors,
    silent,
)
from parallax_formats import Matrix, group_tensors
from parallax_sampling_torch.tensors import read_tensor

NAME = re.compile(r"(?:model\.|backbone\.)?(?:language_model\.)?(?:model\.)?((?:layers\.(\d+)|\w+)\..*)")
"""Matches a tensor's name without its prefix, which differs between text and multimodal models, and its layer."""
SYNONYMS = {"embed.weight": "embed_tokens.weight", "head.weight": "lm_head.weight"} | {
    f"hc_head_{name}": f"hc_head.hc_{name}" for name in ("fn", "base", "scale")
}
"""Names outside the layers in checkpoints of DeepSeek, and those of transformers."""
EMBEDDINGS = frozenset(["embed_tokens", "embeddings"])
AFTER = frozenset(["norm", "norm_f", "embedding_norm", "final_layernorm", "lm_head"])
"""The first words of the names of tensors that come after the layers in every family."""
MATRIX = 2
MISFIT = "the files may be incomplete, or of another model: fetch the model again"
CODED_HINT = "choose another backend, or the model in full precision"


@dataclass(frozen=True, slots=True)
class Selection:
    """The tensors that a stage holds."""

    layers: LayerRange
    num_layers: int
    is_tied: bool
    """Whether the head is tied to the embedding."""
    every: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    mapped: tuple[str, ...] = ()
    """See `model.Shape`."""

    @property
    def has_embedding(self) -> bool:
        """Whether the stage needs the embedding, for its input or as a tied head."""
        return self.layers.start == 0 or (self.is_tied and self.is_last)

    @property
    def is_last(self) -> bool:
        """Whether the stage ends with the last layer."""
        return self.layers.stop == self.num_layers

    def wants(self, name: str) -> bool:
        """Whether the stage needs the tensor of this name."""
        found = match_name(name)
        if found is None:
            return False
        if found[2]:
            return self.layers.start <= int(found[2]) < self.layers.stop
        word = found[1].partition(".")[0]
        if word in self.every or word in self.mapped:
            return True
        if word in EMBEDDINGS:
            return self.has_embedding
        is_after = word in AFTER or word in self.after
        return self.is_last and is_after and not (self.is_tied and word == "lm_head")

    def leaves(self, name: str) -> bool:
        """Whether the stage leaves the tensor of this name in its file, for `Weights.map_table`."""
        words = name.split(".")
        return any(word in self.mapped for word in words) and not (words[0] in EMBEDDINGS and self.has_embedding)


class ReadTensors(NamedTuple):
    """What was read of a part of a model."""

    num_bytes: int
    """The bytes in memory."""
    numbers: int
    """The number of parameters in matrices."""
    forms: frozenset[Form]
    """The types of tensors that are blocks of a GGUF file."""


class TensorSizes:
    """The memory that tensors take after they were read; those read as one count as the first of them."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = dict(forms)
        self._sizes: list[tuple[str, int, int]] = []

    def add(self, name: str, num_bytes: int, numbers: int = 0) -> None:
        """Count the bytes of a tensor in memory, and the parameters of a matrix."""
        self._sizes.append((name, num_bytes, numbers))

    def measure(self, selection: Selection) -> ReadTensors:
        """Return the sizes of the tensors of a stage, among those that were read."""
        sizes = [size for name, *size in self._sizes if selection.wants(name)]
        forms = frozenset(form for name, form in self._forms.items() if selection.wants(name))
        return ReadTensors(sum(size[0] for size in sizes), sum(size[1] for size in sizes), forms)


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The tensors of a stage as its files have them, by name, as `NAME` shortens it."""

    plain: Mapping[str, Tensor]
    """Those that are a tensor of the file."""
    forms: Mapping[str, Form]
    """The types of those among them that are blocks of a GGUF file."""
    coded: Mapping[str, Matrix]
    """Those that are several tensors of the file."""


class TensorFile:
    """The tensors of a stage, mapped into memory, and the progress of loading them.

    Args:
        stored: the tensors.
        task: the name of the task in progress reports.
        progress: called with the bytes read so far.
        left_out: the names of tensors that stay in their files.
    """

    def __init__(
        self,
        stored: StoredTensors,
        task: str,
        progress: Progress,
        left_out: frozenset[str] = frozenset(),
    ) -> None:
        self.tensors, self.forms, self.coded, self.left_out = stored.plain, stored.forms, stored.coded, left_out
        self.names = frozenset(stored.plain) | frozenset(stored.coded)
        """The names of all tensors."""
        self.keeps_codes = False
        """Whether codes that the kernels have products for stay codes."""
        self.left = set(self.names)
        """The names of tensors that were not requested yet."""
        self.total = sum(
            memoryview(part.data).nbytes for name in self.names - left_out for part in self._list_parts(name)
        )
        self.done = 0
        self.sizes = TensorSizes(stored.forms)
        """The memory of the tensors that were read."""
        self._task, self._progress = task, progress

    def view(self, name: str) -> torch.Tensor:
        """Return a tensor as it is stored, on the CPU, over the memory of its file.

        Raises:
            ParallaxError: if there is no tensor of this name.
        """
        self._request(name)
        if name in self.coded:
            raise Unsupported(f"the table {name} is quantised, and rows of it are not read from its file", CODED_HINT)
        return read_tensor(self.tensors[name])

    def open_rows(self, name: str) -> Rows:
        """Return the rows of a matrix, over the memory of its file; raises as `view` does."""
        self._request(name)
        if name in self.coded:
            matrix = self.coded[name]
            return GridRows(matrix) if self.keeps_codes and find_product(matrix.grid) else CodedRows(matrix)
        view, form = read_tensor(self.tensors[name]), self.forms.get(name)
        return BlockRows(view, form, self.read_shape(name)[1]) if form else TensorRows(view.flatten(0, -2))

    def find_kind(self, name: str) -> WeightKind | None:
        """Return the kind of codes that a matrix has or is rounded to; None: it becomes floats."""
        if form := self.forms.get(name):
            return LAYOUTS[form].kind
        return find_product(self.coded[name].grid) or "int8" if self.keeps_codes and name in self.coded else None

    def read_whole(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor on the CPU, as it is stored, or in float32; raises as `view` does."""
        self._request(name)
        if name in self.coded:
            own = CodedRows(self.coded[name]).read(0, self.coded[name].num_rows).reshape(self.coded[name].shape)
        else:
            view, form = read_tensor(self.tensors[name]), self.forms.get(name)
            own = read_blocks(view, form).to_dense() if form else view.clone()
        self.release(name)
        return own

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an existing tensor; for codes and blocks, the shape of the weights in them."""
        if name in self.coded:
            return self.coded[name].shape
        shape = self.tensors[name].shape
        if name not in self.forms:
            return shape
        layout = find_layout(self.forms[name], shape[-1])
        return (*shape[:-1], shape[-1] // layout.size * layout.weights)

    def release(self, name: str) -> None:
        """Return the memory of a tensor after reading it, and report progress."""
        self.give_back(name)
        self.tell(sum(memoryview(part.data).nbytes for part in self._list_parts(name)))

    def give_back(self, name: str) -> None:
        """Tell the system that the file of a tensor is not needed in memory for now; see `give_back`."""
        for part in self._list_parts(name):
            give_back(part)

    def tell(self, num_bytes: int) -> None:
        """Report more loaded bytes."""
        self.done += num_bytes
        self._progress(self._task, min(self.done, self.total), self.total)

    def check_left(self, spare: Sequence[str] = ()) -> None:
        """Refuse a checkpoint with unused tensors: its model has another structure.

        Args:
            spare: suffixes of names that may be unused.

        Raises:
            ParallaxError: naming one of the unused tensors.
        """
        left = sorted(name for name in self.left if not name.endswith(tuple(spare)))
        if left:
            raise ParallaxError(f"the tensor {left[0]} is not used, one of {len(left)}", MISFIT)

    def _request(self, name: str) -> None:
        if name not in self.names:
            raise ParallaxError(f"the checkpoint has no tensor {name}", MISFIT)
        self.left.discard(name)

    def _list_parts(self, name: str) -> Iterator[Tensor]:
        yield from self.coded[name].parts.tensors.values() if name in self.coded else (self.tensors[name],)


@dataclass(frozen=True, slots=True)
class CodedRows:
    """`Rows` of a weight that is stored as several tensors, in float32."""

    matrix: Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.matrix.num_rows, self.matrix.shape[-1]

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return some of the rows."""
        return torch.from_numpy(self.matrix.read(start, stop))


@dataclass(frozen=True, slots=True)
class StackedRows:
    """`Rows` of one matrix of a stack, such as that of an expert."""

    stack: Rows
    """The rows of all matrices, counted through."""
    number: int
    count: int
    """The number of matrices."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.stack.shape[0] // self.count, self.stack.shape[1]

    def read(self, start: int, stop: int) -> torch.Tensor | Quantized:
        """Return some of the rows."""
        first = self.number * self.shape[0]
        return self.stack.read(first + start, first + stop)


class FileRows:
    """`Rows` of the matrices of these names, stacked by rows; returns the memory of the file while reading.

    Args:
        file: the tensors.
        names: of matrices, or of stacks of as many matrices each.
        part: the number of the matrix of each stack that is read, and their number; None: there are no stacks.
    """

    def __init__(self, file: TensorFile, names: Sequence[str], part: tuple[int, int] | None = None) -> None:
        self._file, self._names = file, names
        rows = [file.open_rows(name) for name in names]
        self._rows = rows if part is None else [StackedRows(each, *part) for each in rows]
        heights = [rows.shape[0] for rows in self._rows]
        self._starts = [sum(heights[:index]) for index in range(len(heights))]
        self.shape = (sum(heights), self._rows[0].shape[1])
        if any(each.shape[1] != self.shape[1] for each in self._rows):
            raise ParallaxError(f"{', '.join(names)} have rows of several widths", MISFIT)
        kinds = {file.find_kind(name) for name in names}
        self.stored: WeightKind | None = "int8_low"
        """The kind of the codes of all matrices, or one that has the numbers of all; None if one becomes floats."""
        if len(kinds) == 1 or None in kinds:
            self.stored = None if None in kinds else kinds.pop()

    def read(self, start: int, stop: int) -> torch.Tensor | Quantized:
        """Return rows ``start`` to ``stop``."""
        parts = []
        for name, rows, first in zip(self._names, self._rows, self._starts, strict=True):
            low, high = max(start - first, 0), min(stop - first, rows.shape[0])
            if low < high:
                parts.append(rows.read(low, high))
                if name not in self._file.coded:  # whose parts are small, and read again for other rows
                    self._file.give_back(name)
        if len(parts) == 1:
            return parts[0]
        if self.stored:
            converted = [convert_part(part, self.stored) for part in parts]
            return join_rows([part for part in converted if isinstance(part, Quantized)])
        return torch.cat([part.to_dense() if isinstance(part, Quantized) else part for part in parts])

    def list_modules(self) -> list[ModulePart]:
        """Return the modules whose matrices these are, with their rows."""
        parts = zip(self._names, self._starts, self._rows, strict=True)
        return [ModulePart(name.removesuffix(".weight"), start, rows.shape[0]) for name, start, rows in parts]

    def close(self) -> None:
        """Return the remaining memory."""
        for name in self._names:
            self._file.release(name)


def match_name(name: str) -> re.Match[str] | None:
    """Return the match of a tensor's name with `NAME`, under the name that transformers has for it; None if none."""
    return NAME.fullmatch(SYNONYMS.get(name, name))


def open_file(folder: Path, selection: Selection, progress: Progress, *, is_exact: bool = False) -> TensorFile:
    """Return the tensors of a stage; reads only their names. ``is_exact``: blocks become float32, not rounded codes.

    Raises:
        ParallaxError: if there are no weights, or a file is damaged.
        Unsupported: if this backend does not read the GGUF type of a tensor, or the form of a quantised weight.
    """
    config = read_config(folder)
    stored = dict(read_tensors(folder, selection.wants, silent))
    types = Config(config).list_forms()
    packed = {name for name in stored.keys() & types.keys() if types[name] in LAYOUTS and not is_exact}
    coded = group_tensors(config, {name: tensor for name, tensor in stored.items() if name not in packed})
    parts = {name for matrix in coded.values() for name in matrix.names}
    forms = {shorten(name): check_blocks(name, stored[name], types[name]) for name in packed}
    tensors = {shorten(name): tensor for name, tensor in stored.items() if name not in parts}
    left_out = frozenset(name for name in tensors if selection.leaves(name))
    matrices = {shorten(name): matrix for name, matrix in coded.items()}
    file = TensorFile(StoredTensors(tensors, forms, matrices), f"load {folder.name}", progress, left_out)
    file.tell(0)
    return file


def shorten(name: str) -> str:
    """Return the name of a tensor without its prefix; see `NAME`."""
    found = match_name(name)
    assert found, "it was wanted"
    return found[1]


def check_blocks(name: str, tensor: Tensor, form: str) -> Form:
    """Return the type of a tensor of blocks.

    Raises:
        Unsupported: if this backend does not read its type, or its rows are not whole blocks.
    """
    is_matrix = tensor.dtype == "uint8" and len(tensor.shape) == MATRIX
    if not is_matrix or form not in LAYOUTS or tensor.shape[1] % LAYOUTS[form].size:
        what = f"{name} in blocks of type {form} is {tensor.dtype} of shape {list(tensor.shape)}"
        raise Unsupported(f"{what}; supported are uint8 rows of {', '.join(LAYOUTS)}", "convert the GGUF file again")
    return form


def give_back(tensor: Tensor) -> None:
    """Tell the system that the file of a tensor is not needed in memory; later reads come from the file.

    The whole file, not only the pages of the tensor, since the system also maps pages around those that are read.
    """
    whole = memoryview(tensor.data).obj
    if isinstance(whole, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        whole.madvise(mmap.MADV_DONTNEED)
