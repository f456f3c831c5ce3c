"""Every type of blocks: rows are what the gguf package reads of the whole tensor, in any parts."""

from __future__ import annotations

from collections.abc import Mapping

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from parallax_core.api import ParallaxError, Tensor, Unsupported
from parallax_formats import group_tensors
from parallax_formats.gguf import PLAIN, are_finite, is_read

HEIGHT, WIDTH = 6, 512
TYPES = [kind for kind in GGMLQuantizationType if is_read(kind) and kind not in PLAIN]


def draw(kind: GGMLQuantizationType) -> Tensor:
    """Return random blocks, with scales that are finite numbers."""
    numbers, size = GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 60, (HEIGHT, WIDTH // numbers * size), np.uint8)
    return Tensor("uint8", data.shape, data.tobytes())


def describe(types: Mapping[str, object]) -> dict[str, object]:
    return {"quantization_config": {"quant_method": "gguf", "types": types}}


def test_types_are_those_of_the_package() -> None:
    assert len(TYPES) >= 23
    assert {"Q4_0", "Q8_0", "Q2_K", "Q6_K", "IQ1_M", "IQ4_XS", "MXFP4", "NVFP4", "TQ2_0"} <= {
        kind.name for kind in TYPES
    }


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_rows_are_those_that_the_package_reads(kind: GGMLQuantizationType) -> None:
    tensor = draw(kind)
    [(name, matrix)] = group_tensors(describe({"a.weight": kind.name, "other": "Q4_0"}), {"a.weight": tensor}).items()
    stored = np.frombuffer(tensor.data, np.uint8).reshape(tensor.shape)
    whole = gguf.quants.dequantize(stored, kind)
    assert (name, matrix.shape, matrix.names) == ("a.weight", (HEIGHT, WIDTH), ("a.weight",))
    assert matrix.read(0, HEIGHT).dtype == np.float32
    np.testing.assert_array_equal(matrix.read(0, HEIGHT), whole)
    np.testing.assert_array_equal(matrix.read(2, 5), whole[2:5])
    assert are_finite(stored, kind) == np.isfinite(whole).all()


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind.name not in ("NVFP4", "MXFP4", "IQ1_M")])
def test_scales_that_are_no_numbers_are_found(kind: GGMLQuantizationType) -> None:
    rows = np.full((1, GGML_QUANT_SIZES[kind][1]), 0x7C, np.uint8)
    with np.errstate(all="ignore"):
        assert not np.isfinite(gguf.quants.dequantize(rows, kind)).all()
    assert not are_finite(rows, kind)


@pytest.mark.parametrize(
    ("types", "dtype", "width", "reason"),
    [
        ({"a.weight": "Q4_K"}, "uint8", 143, "is not blocks of the type Q4_K: weight uint8"),
        ({"a.weight": "Q4_K"}, "int8", 144, "is not blocks of the type Q4_K"),
        ({"a.weight": "Q9_Z"}, "uint8", 144, "is not blocks of the type Q9_Z"),
        ({"a.weight": "Q8_K"}, "uint8", 292, "which are not read"),
        ({"a.weight": 12}, "uint8", 144, "not a table of strings"),
        (["Q4_K"], "uint8", 144, "not a table of strings"),
    ],
)
def test_tensors_that_are_no_blocks_are_refused(types: dict[str, object], dtype: str, width: int, reason: str) -> None:
    tensor = Tensor(dtype, (2, width), bytes(2 * width))
    with pytest.raises((ParallaxError, Unsupported), match=reason):
        group_tensors(describe(types), {"a.weight": tensor})
