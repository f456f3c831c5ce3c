"""Tensors that keep the packed values of a GGUF file: rows of blocks.

In a model folder such a tensor is uint8 of shape [rows, bytes], under its usual name, and config.json gives its type:
``"quantization_config": {"quant_method": "gguf", "types": {NAME: "Q4_1"}}``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from parallax_source_pypi.reader import GgufFile, TensorInfo, damaged
from parallax_source_pypi.weights import Floats, TargetTensor, load_floats, sort_rows, widen_rows

Bytes = npt.NDArray[np.uint8]
MATRIX = 2
SCALES = {
    GGMLQuantizationType.Q4_0: slice(0, 2),
    GGMLQuantizationType.Q4_1: slice(0, 4),
    GGMLQuantizationType.Q8_0: slice(0, 2),
    GGMLQuantizationType.Q4_K: slice(0, 4),
    GGMLQuantizationType.Q6_K: slice(208, 210),
}
"""The types that are kept, and the bytes of a block that hold its float16 scales."""


def is_kept(info: TensorInfo) -> bool:
    """Whether a tensor stays packed."""
    return info.kind in SCALES and len(info.shape) == MATRIX


def load_kept(gguf: GgufFile, slot: TargetTensor) -> Bytes | Floats:
    """Return a tensor without loss: packed, or as floats if its type is not kept.

    Raises:
        ParallaxError: if a value is infinite or not a number.
        Unsupported: if the values are packed in a way the gguf package cannot unpack.
    """
    info = gguf.tensors[slot.source]
    if info.kind == GGMLQuantizationType.F32:
        return widen_rows(sort_rows(gguf.read_rows(info), slot.num_heads), info.kind, slot)
    if not is_kept(info):
        return load_floats(gguf, slot)
    rows = sort_rows(gguf.read_rows(info), slot.num_heads)
    blocks = rows.reshape(len(rows), -1, GGML_QUANT_SIZES[info.kind][1])
    if not np.isfinite(np.ascontiguousarray(blocks[..., SCALES[info.kind]]).view(np.float16)).all():
        raise damaged(f"the tensor {slot.source!r} has values that are not finite")
    return rows
