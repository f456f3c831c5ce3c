"""Tensors of any shape and dtype: a weight is read whole, or refused by an error of ours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parallax_core.api import ParallaxError, Tensor
from parallax_formats import FORMATS, group_tensors
from parallax_formats.numbers import STORED

WORDS = sorted({word for formats in FORMATS.values() for each in formats for word in each.list_words()})
SIZES = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 32])
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 2, 3, 4, 7, 8, 32, 64, True, "four", [32, 32], [32, 0], [0, 1, 2], {}]
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(sorted(STORED))), tuple(draw(st.lists(SIZES, max_size=3)))
    size = math.prod(shape) * np.dtype(STORED[dtype]).itemsize
    return Tensor(
        dtype,
        shape,
        draw(st.binary(min_size=size, max_size=size))
        if size < 256
        else bytes(range(256)) * (size // 256) + bytes(size % 256),
    )


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, dict[str, Tensor]]:
    """Return a method, and tensors that are a weight in one of its formats as far as their names say."""
    method = draw(st.sampled_from(sorted(FORMATS)))
    one = draw(st.sampled_from(FORMATS[method]))
    some = draw(st.sets(st.sampled_from(WORDS), max_size=2))
    words = {one.codes, *one.needs, *some, *([draw(st.sampled_from(sorted(one.needs_any)))] if one.needs_any else [])}
    found = {f"a.{word}": draw(tensors()) for word in sorted(words)}
    if one.dtypes:
        shape = found[f"a.{one.codes}"].shape
        dtype = draw(st.sampled_from(sorted(one.dtypes)))
        found[f"a.{one.codes}"] = Tensor(dtype, shape, bytes(math.prod(shape) * np.dtype(STORED[dtype]).itemsize))
    return method, found


@settings(max_examples=400)
@given(
    layers(),
    st.dictionaries(
        st.sampled_from(["bits", "group_size", "weight_block_size", "version", "mode", "a", "config_groups"]), ODD
    ),
)
def test_any_tensors_are_read_or_refused(layer: tuple[str, dict[str, Tensor]], settings: dict[str, Any]) -> None:
    method, parts = layer
    told = {"group_size": 32, **settings} if method == "mlx" else {**settings, "quant_method": method}
    try:
        found = group_tensors({"quantization_config": told}, parts)
    except ParallaxError:
        return
    for matrix in found.values():
        with np.errstate(all="ignore"):
            assert matrix.read(0, matrix.num_rows).shape == (matrix.num_rows, matrix.shape[-1])
