"""Adapters of joined matrices on models that have them apart, and the other way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallax_adapters.joined import fit_modules
from parallax_adapters.peft_files import LowRank, read_adapter, to_floats
from parallax_core.api import Unsupported
from tests.support.tiny_adapters import make_matrices, write_adapter

STEM = "layers.0.self_attn."
APART = {"q_proj": 6, "k_proj": 4, "v_proj": 4}
INPUTS = 8


def read(folder: Path, sizes: dict[str, int], inputs: int = INPUTS, **settings: Any) -> dict[str, LowRank]:
    """Return the matrices of a new adapter for modules with some outputs."""
    matrices = make_matrices({f"{STEM}{name}": (count, inputs) for name, count in sizes.items()})
    return dict(read_adapter(write_adapter(folder, matrices, **settings)).modules)


def multiply(matrices: LowRank) -> Any:
    return matrices.scale * (to_floats(matrices.b) @ to_floats(matrices.a))


def test_joined_matrices_are_taken_apart(tmp_path: Path) -> None:
    joined = read(tmp_path, {"qkv_proj": 14})
    found = fit_modules(joined, {f"{STEM}{name}": (INPUTS, count) for name, count in APART.items()})
    assert found.keys() == {f"{STEM}{name}" for name in APART}
    np.testing.assert_allclose(
        np.concatenate([multiply(each) for each in found.values()]), multiply(joined[f"{STEM}qkv_proj"]), rtol=1e-5
    )


@pytest.mark.parametrize("names", [("q_proj", "k_proj", "v_proj"), ("v_proj", "q_proj"), ("k_proj",), ("q_proj",)])
def test_matrices_that_are_apart_are_joined_with_their_scales(tmp_path: Path, names: tuple[str, ...]) -> None:
    apart = read(tmp_path, {name: APART[name] for name in names}, alpha_pattern={"q_proj": 20, "v_proj": 2})
    found = fit_modules(apart, {f"{STEM}qkv_proj": (INPUTS, 14)})
    rows = [np.zeros((count, INPUTS)) for count in APART.values()]
    for place, name in enumerate(APART):
        if (part := apart.get(f"{STEM}{name}")) is not None:
            rows[place] = multiply(part)
    np.testing.assert_allclose(multiply(found[f"{STEM}qkv_proj"]), np.concatenate(rows), rtol=1e-5, atol=1e-6)


def test_gates_are_the_first_half(tmp_path: Path) -> None:
    apart = read(tmp_path, {"up_proj": 5})
    found = multiply(fit_modules(apart, {f"{STEM}gate_up_proj": (INPUTS, 10)})[f"{STEM}gate_up_proj"])
    assert not found[:5].any()
    np.testing.assert_allclose(found[5:], multiply(apart[f"{STEM}up_proj"]), rtol=1e-5)


def test_outputs_that_do_not_fit_are_refused_and_others_stay(tmp_path: Path) -> None:
    sizes = {f"{STEM}{name}": (INPUTS, count) for name, count in APART.items()}
    with pytest.raises(Unsupported, match="qkv_proj has 15 outputs, and its parts have 14 in this model"):
        fit_modules(read(tmp_path / "1", {"qkv_proj": 15}), sizes)
    with pytest.raises(Unsupported, match="qkv_proj has 14 outputs in this model, and its parts"):
        fit_modules(read(tmp_path / "2", {"q_proj": 8, "k_proj": 4}), {f"{STEM}qkv_proj": (INPUTS, 14)})
    both = read(tmp_path / "3", {"qkv_proj": 14, "q_proj": 6})
    assert fit_modules(both, {f"{STEM}qkv_proj": (INPUTS, 14)}) == both
    assert fit_modules(both, sizes) == both
