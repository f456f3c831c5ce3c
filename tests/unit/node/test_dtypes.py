from __future__ import annotations

import math
import struct
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parallax_core.api import Tensor
from parallax_core.contracts.tensor import FLOATS
from parallax_core.node.dtypes import convert

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


def view(bits: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return whole numbers as the floats whose bits they are."""
    return bits.view(getattr(torch, dtype))


def check_bits(given: torch.Tensor, there: str) -> None:
    """Check that each number becomes, bit for bit, what torch makes of it, and that a NaN becomes any NaN."""
    here = str(given.dtype).removeprefix("torch.")
    converted = convert(Tensor(here, (len(given),), given.view(torch.uint8).numpy().tobytes()), there)
    found = torch.frombuffer(bytearray(converted.data), dtype=getattr(torch, there))
    wanted = given.to(torch.float32).to(getattr(torch, there))
    width = torch.int32 if there == "float32" else torch.int16
    assert torch.equal(found.isnan(), wanted.isnan())
    numbers = ~wanted.isnan()
    assert torch.equal(found.view(width)[numbers], wanted.view(width)[numbers])


@pytest.mark.parametrize("there", sorted(FLOATS))
@pytest.mark.parametrize("here", ["bfloat16", "float16"])
def test_conversion_of_every_half_is_that_of_torch(here: str, there: str) -> None:
    check_bits(view(torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16), here), there)


@pytest.mark.parametrize("there", ["bfloat16", "float16"])
def test_conversion_rounds_a_tie_to_the_even_neighbour_and_its_neighbours_to_the_nearest(there: str) -> None:
    halves = view(torch.arange(0, 2**15 - 1, dtype=torch.int32).to(torch.int16), there).to(torch.float64)
    ties = (halves[1:] + halves[:-1])[halves[1:].isfinite()].div(2).to(torch.float32)
    beside = [view(ties.view(torch.int32) + step, "float32") for step in (-1, 0, 1)]
    check_bits(torch.cat([*beside, *(-each for each in beside)]), there)


@pytest.mark.parametrize("there", ["bfloat16", "float16"])
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_conversion_of_any_bits_is_that_of_torch(there: str, bits: list[int]) -> None:
    check_bits(torch.frombuffer(bytearray(struct.pack(f"<{len(bits)}I", *bits)), dtype=torch.float32), there)


def test_numpy_is_not_imported_before_dtypes_differ() -> None:
    code = "import sys, parallax_core.node.worker.runtime, parallax_core.cli.worker; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("there", sorted(FLOATS))
@pytest.mark.parametrize("here", sorted(FLOATS))
def test_what_is_no_number_stays_none(here: str, there: str) -> None:
    assert all(math.isnan(value) for value in read(convert(make([math.nan, -math.nan], here), there)))


def test_same_dtype_is_not_copied() -> None:
    tensor = make([1.0], "float16")
    assert convert(tensor, "float16") is tensor
