"""Reads weights a few rows at a time, so that converting them takes little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from parallax_backend_torch.kernels.ggml import Form, read_blocks
from parallax_backend_torch.kernels.layout import PANEL
from parallax_backend_torch.kernels.quantize import Quantized, quantize_weight

WeightKind = Literal["float32", "bfloat16", "int8", "int8_low", "int4"]
AT_ONCE = 2**17
"""Numbers of a weight that are converted at once; about twenty bytes of memory each."""


class Rows(Protocol):
    """A weight that is read from the first row to the last."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    def read(self, start: int, stop: int) -> torch.Tensor | Quantized:
        """Return rows ``start`` to ``stop``, each at most once; the result must not be written to."""


@dataclass(frozen=True, slots=True)
class TensorRows:
    """`Rows` of a tensor [out, in] of any floating dtype."""

    weight: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return int(self.weight.shape[0]), int(self.weight.shape[1])

    def read(self, start: int, stop: int) -> torch.Tensor:
        """Return some of the rows."""
        return self.weight[start:stop]


@dataclass(frozen=True, slots=True)
class BlockRows:
    """`Rows` of uint8 [out, bytes], the blocks of a GGUF file, with ``width`` weights per row."""

    blocks: torch.Tensor
    form: Form
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return int(self.blocks.shape[0]), self.width

    def read(self, start: int, stop: int) -> Quantized:
        """Return some of the rows."""
        return read_blocks(self.blocks[start:stop], self.form)


@dataclass(frozen=True, slots=True)
class Cut:
    """A weight of a kind, in parts of whole panels, which can be iterated once."""

    kind: WeightKind
    shape: tuple[int, int]
    parts: Iterator[torch.Tensor | Quantized]


def cut_rows(rows: Rows, kind: WeightKind) -> Cut:
    """Return a weight in parts, each converted to a kind when it is read."""
    height, width = rows.shape
    step = max(PANEL, AT_ONCE // max(1, width) // PANEL * PANEL)
    starts = range(0, max(1, height), step)
    return Cut(kind, rows.shape, (convert_part(rows.read(start, min(start + step, height)), kind) for start in starts))


def convert_part(part: torch.Tensor | Quantized, kind: WeightKind) -> torch.Tensor | Quantized:
    """Return rows converted to a kind; the numbers of codes of that kind do not change, nor of any as ``int8_low``."""
    if isinstance(part, Quantized):
        if kind in {part.kind, "int8_low"}:
            return part if part.kind == kind else part.add_low()
        part = part.to_dense()
    if kind == "int8_low":
        return quantize_weight(part, "int8").add_low()
    return quantize_weight(part, kind) if kind in {"int8", "int4"} else part.to(getattr(torch, kind))
