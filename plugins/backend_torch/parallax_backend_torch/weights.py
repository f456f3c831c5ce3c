"""Reads the tensors of a part of a model, and makes matrices of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from parallax_backend_torch.adapters import ModulePart
from parallax_backend_torch.kernels.ggml import Form, read_blocks
from parallax_backend_torch.kernels.linear import Packed
from parallax_backend_torch.kernels.rows import Rows, TensorRows, WeightKind
from parallax_backend_torch.layer_factory import LayerFactory, Purpose
from parallax_backend_torch.mxfp4 import MicroRows, widen_blocks
from parallax_backend_torch.sizes import ATTENTION
from parallax_backend_torch.tensor_file import FileRows, TensorFile


@dataclass(frozen=True, eq=False, slots=True)
class MappedTable:
    """A matrix whose rows are looked up by token id, in its mapped file: a row is read only when a token needs it."""

    view: torch.Tensor
    form: Form | None
    """The type of its blocks, if it is of a GGUF file."""
    factory: LayerFactory

    def gather(self, ids: torch.Tensor, columns: slice = slice(None)) -> torch.Tensor:
        """Return some columns of the rows of tokens, [tokens, columns], in the dtype of activations on their device."""
        ids = ids.cpu()
        rows = (
            read_blocks(self.view[ids], self.form).to_dense()[:, columns] if self.form else self.view[:, columns][ids]
        )
        return rows.to(self.factory.device, self.factory.dtype)


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors of a part of a model, and the factory that makes matrices of them."""

    file: TensorFile
    factory: LayerFactory
    prefix: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    """See `rename`."""

    def rename(self, **names: str) -> Weights:
        """Return the same tensors under other names: ``weights.rename(o_proj="out_proj")``.

        Each word of a name is looked up by itself. Several matrices of one name are one in the checkpoint, stacked by
        rows: ``weights.rename(gate_proj="gate_up_proj", up_proj="gate_up_proj")``.
        """
        return replace(self, names={**self.names, **names})

    def within(self, part: str) -> Weights:
        """Return the tensors of a part, such as ``self_attn``."""
        return replace(self, prefix=f"{self._spell(part)}.")

    def has(self, name: str) -> bool:
        """Whether the tensor exists."""
        return self._spell(name) in self.file.names

    def read_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an existing tensor; see `TensorFile.read_shape`."""
        return self.file.read_shape(self._spell(name))

    def read_plain(self, name: str) -> torch.Tensor:
        """Return a copy of a tensor as it is stored, blocks in float32, on the CPU; see `TensorFile.view`."""
        return self.file.read_whole(self._spell(name))

    def read_vector(self, name: str) -> torch.Tensor:
        """Return a small tensor in float32 on the device; see `TensorFile.view`."""
        vector = self.factory.make_vector(self.read_plain(name))
        self.file.sizes.add(self._spell(name), vector.nbytes)
        return vector

    def make_linear(self, *names: str, purpose: Purpose = "layer") -> Packed:
        """Return the matrices ``NAME.weight`` as one, stacked by rows, with their biases if they have any."""
        bias = self.read_bias(*names)
        stored = list(dict.fromkeys(self._spell(f"{name}.weight") for name in names))
        rows = FileRows(self.file, stored)
        kind = self.factory.choose_kind(rows.stored, self._refine(purpose, stored[0]))
        made = self._keep_rows(stored[0], rows, bias, kind)
        rows.close()
        return made if self.factory.adapters is None else self.factory.adapters.wrap(made, rows.list_modules())

    def adapt(self, made: Packed, *names: str) -> Packed:
        """Return a matrix as one that takes adapters, of modules of these names that have as many rows each."""
        size = made.out_features // len(names)
        parts = [ModulePart(self._spell(name), size * place, size) for place, name in enumerate(names)]
        return made if self.factory.adapters is None else self.factory.adapters.wrap(made, parts)

    def make_stacked(self, part: tuple[int, int], *names: str, bias: torch.Tensor | None = None) -> Packed:
        """Return one matrix of each of the stacks ``NAME.weight``, [number, out, in], as one, stacked by rows.

        Args:
            part: the number of the matrix, from 0 on in order, and the number of matrices.
            names: of the stacks.
            bias: of the matrix.
        """
        stored = [self._spell(f"{name}.weight") for name in names]
        rows = FileRows(self.file, stored, part)
        made = self._keep_rows(stored[0], rows, bias, self.factory.choose_kind(rows.stored, "layer"))
        if part[0] == part[1] - 1:
            rows.close()
        return made

    def keep_linear(self, weight: torch.Tensor, bias: torch.Tensor | None, purpose: Purpose = "layer") -> Packed:
        """Return a copy of a matrix [out, in] read with this object, ready for products."""
        kind = self.factory.choose_kind(None, self._refine(purpose, self.prefix))
        return self._keep_rows(self.prefix, TensorRows(weight), bias, kind)

    def keep_blocks(self, rows: MicroRows, bias: torch.Tensor | None) -> Packed:
        """Return a copy of a matrix in MXFP4 read with this object, ready for products; as codes where they stay so."""
        if not rows.are_codes:
            return self.keep_linear(widen_blocks(rows.blocks, rows.scales), bias)
        kind = self.factory.choose_kind("int8" if self.file.keeps_codes else None, "layer")
        return self._keep_rows(self.prefix, rows, bias, kind)

    def keep_stack(self, matrices: torch.Tensor) -> torch.Tensor:
        """Return matrices [number, in, out] read with this object, in the dtype of activations."""
        made = matrices.to(self.factory.device, self.factory.dtype).contiguous()
        self.file.sizes.add(self.prefix, made.nbytes, made.numel())
        return made

    def map_table(self, name: str) -> MappedTable:
        """Return the table ``NAME.weight``, which `model.Shape.mapped` names; see `MappedTable`."""
        spelt = self._spell(f"{name}.weight")
        return MappedTable(self.file.view(spelt), self.file.forms.get(spelt), self.factory)

    def leave(self, *names: str) -> None:
        """Count tensors as used that checkpoints may have, and this family does not need."""
        self.file.left.difference_update(map(self._spell, names))

    def top(self) -> Weights:
        """Return the tensors outside the layers, such as those in `model.Shape.every`."""
        return replace(self, prefix="")

    def read_bias(self, *names: str) -> torch.Tensor | None:
        """Return the biases ``NAME.bias``, concatenated, or None without any."""
        if not any(self.has(f"{name}.bias") for name in names):
            return None
        stored = dict.fromkeys(self._spell(f"{name}.bias") for name in names)
        return torch.cat([self.file.read_whole(name).float() for name in stored])

    def _spell(self, name: str) -> str:
        """Return the name of a tensor or part in the checkpoint."""
        return self.prefix + ".".join(self.names.get(word, word) for word in name.split("."))

    def _refine(self, purpose: Purpose, name: str) -> Purpose:
        """Return the purpose of a matrix, refined by the part of the layer that it belongs to."""
        return "attention" if purpose == "layer" and ATTENTION.search(name) else purpose

    def _keep_rows(self, name: str, rows: Rows, bias: torch.Tensor | None, kind: WeightKind) -> Packed:
        made = self.factory.make_linear(rows, bias, kind)
        self.file.sizes.add(name, made.num_bytes, made.out_features * made.in_features)
        return made
