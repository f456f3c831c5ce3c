"""Tensors that keep the packed values of a GGUF file; see `parallax_formats.gguf.blocks`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from parallax_formats.gguf import PLAIN, GgufFile, TensorInfo, are_finite, damaged, is_read
from parallax_source_pypi.weights import Floats, TargetTensor, load_floats, sort_rows, widen_rows

Bytes = npt.NDArray[np.uint8]
MATRIX = 2


def is_kept(info: TensorInfo) -> bool:
    """Whether a tensor stays packed."""
    return info.kind not in PLAIN and len(info.shape) == MATRIX and is_read(info.kind)


def load_kept(gguf: GgufFile, slot: TargetTensor) -> Bytes | Floats:
    """Return a tensor without loss: packed, or as floats if its type is not kept.

    Raises:
        ParallaxError: if a value is infinite or not a number.
        Unsupported: if the gguf package does not read the type.
    """
    info = gguf.tensors[slot.source]
    if info.kind == GGMLQuantizationType.F32:
        return widen_rows(sort_rows(gguf.read_rows(info), slot.num_heads), info.kind, slot)
    if not is_kept(info):
        return load_floats(gguf, slot)
    rows = sort_rows(gguf.read_rows(info), slot.num_heads)
    if not are_finite(rows, info.kind):
        raise damaged(f"the tensor {slot.source!r} has values that are not finite")
    return rows
