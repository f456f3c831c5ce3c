"""Weights of bitsandbytes against what that library (0.50.2) wrote, and read again, in ``bitsandbytes.safetensors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from parallax_core.api import ParallaxError, Tensor
from parallax_formats import group_tensors
from parallax_sampling_torch.tensors import name_dtype

CONFIG = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
WRITTEN = load_file(Path(__file__).with_name("bitsandbytes.safetensors"))
STATE = "weight.quant_state.bitsandbytes__nf4"


def store(found: torch.Tensor) -> Tensor:
    return Tensor(name_dtype(found.dtype), tuple(found.shape), bytes(found.contiguous().view(torch.uint8).numpy()))


def take(case: str) -> dict[str, Tensor]:
    start = f"{case}.coded."
    return {
        f"a.{name.removeprefix(start)}": store(part.reshape(-1) if part.ndim == 0 else part)
        for name, part in WRITTEN.items()
        if name.startswith(start)
    }


@pytest.mark.parametrize("case", ["nf4", "nf4.nested", "fp4", "fp4.nested", "int8"])
def test_reads_what_the_library_reads(case: str) -> None:
    found, wanted = group_tensors(CONFIG, take(case)), WRITTEN[f"{case}.wanted"].numpy()
    matrix = found.pop("a.weight")
    assert not found
    assert matrix.shape == wanted.shape
    np.testing.assert_array_equal(matrix.read(0, matrix.num_rows), wanted)
    for start, stop in ((3, 21), (1, 2), (36, 37)):
        np.testing.assert_array_equal(matrix.read(start, stop), wanted[start:stop])


def test_codes_of_8_bits_are_steps_of_a_scale() -> None:
    matrix = group_tensors(CONFIG, take("int8"))["a.weight"]
    assert matrix.grid is not None
    found = matrix.read_codes(3, 21)
    np.testing.assert_allclose(found.codes * found.scales + found.lows, matrix.read(3, 21), rtol=1e-4, atol=1e-6)


def say(**changes: Any) -> Tensor:
    """Return the settings of a weight with others."""
    plain = json.loads(bytes(WRITTEN[f"nf4.nested.coded.{STATE}"].tolist()))
    data = json.dumps({**plain, **changes}).encode()
    return Tensor("uint8", (len(data),), data)


@pytest.mark.parametrize(
    ("word", "tensor"),
    [
        (STATE, say(shape=[91, 10**9])),
        (STATE, say(shape=[91, -91])),
        (STATE, say(shape=[8281])),
        (STATE, say(shape="91")),
        (STATE, say(blocksize=0)),
        (STATE, say(blocksize=64)),
        (STATE, say(blocksize=True)),
        (STATE, say(nested_blocksize=128)),
        (STATE, say(nested_offset="1")),
        (STATE, Tensor("uint8", (2,), b"[]")),
        (STATE, Tensor("uint8", (3000,), b"[" * 3000)),
        (STATE, Tensor("uint8", (10**5,), b" " * 10**5)),
        ("weight.absmax", Tensor("uint8", (258,), bytes(258))),
        ("weight.quant_map", Tensor("float32", (8,), bytes(32))),
        ("weight.nested_quant_map", Tensor("float32", (16,), bytes(64))),
        ("weight.nested_absmax", Tensor("float32", (0,), b"")),
    ],
)
def test_what_does_not_fit_is_refused(word: str, tensor: Tensor) -> None:
    with pytest.raises(ParallaxError, match=r"the weight a is not bitsandbytes' codes"):
        group_tensors(CONFIG, take("nf4.nested") | {f"a.{word}": tensor})
