from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Tensor
from parallax_core.node.convert import FLOATS, convert

EDGES = [0.0, -0.0, 1.0, 65504.0, 65519.0, 65520.0, -1e30, 3.4e38, 1e-40, 6e-8, math.inf, -math.inf, 1.00390625]


def make(values: list[float], dtype: str) -> Tensor:
    """Return a tensor as torch writes it."""
    made = torch.tensor(values, dtype=torch.float64).to(getattr(torch, dtype))
    return Tensor(dtype, (1, len(values)), made.view(torch.uint8).numpy().tobytes())


def read(tensor: Tensor) -> list[float]:
    data = torch.frombuffer(bytearray(tensor.data), dtype=getattr(torch, tensor.dtype))
    return [float(value) for value in data.to(torch.float64)]


@pytest.mark.parametrize("there", sorted(FLOATS))
@pytest.mark.parametrize("here", sorted(FLOATS))
@given(st.lists(st.floats(width=32, allow_nan=False) | st.sampled_from(EDGES), min_size=1, max_size=20))
def test_conversion_is_that_of_torch(here: str, there: str, values: list[float]) -> None:
    tensor = make(values, here)
    converted = convert(tensor, there)
    middle = torch.tensor(read(tensor), dtype=torch.float32).to(getattr(torch, there))
    assert (converted.dtype, converted.shape) == (there, tensor.shape)
    assert struct.pack(f"{len(values)}d", *read(converted)) == struct.pack(
        f"{len(values)}d", *[float(value) for value in middle.to(torch.float64)]
    )


@pytest.mark.parametrize("there", sorted(FLOATS))
@pytest.mark.parametrize("here", sorted(FLOATS))
def test_what_is_no_number_stays_none(here: str, there: str) -> None:
    assert all(math.isnan(value) for value in read(convert(make([math.nan, -math.nan], here), there)))


def test_same_dtype_is_not_copied() -> None:
    tensor = make([1.0], "float16")
    assert convert(tensor, "float16") is tensor
