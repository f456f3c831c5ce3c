"""Rotary embeddings whose angles are shared by all layers: the numbers of mlx-lm's, computed once in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_backend_mlx.checkpoint import read_checkpoint
from parallax_backend_mlx.loading import load_network
from parallax_backend_mlx.rope import Rotation, replace_rotations
from parallax_backend_mlx.runtime import Llama3RoPE, Module, RoPE, YarnRoPE, mx
from parallax_core.api import StagePlan

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
EMBEDDINGS: dict[str, Any] = {
    "plain": RoPE(16, base=250.0),
    "scaled": RoPE(16, base=250.0, scale=0.25),
    "llama3": Llama3RoPE(16, base=250.0, scaling_config=LLAMA3),
    "yarn": YarnRoPE(16, base=250.0, scaling_factor=4.0, original_max_position_embeddings=64),  # type: ignore[no-untyped-call]
}
LEFT: dict[str, Any] = {"traditional": RoPE(16, traditional=True), "partial": RoPE(8), "wide": RoPE(16)}


def replace(plain: Any) -> Any:
    """Return what stands for ``plain`` in a model."""
    model: Any = Module()  # type: ignore[no-untyped-call]
    model.rope = plain
    replace_rotations(model)
    return model.rope


def make_rows(columns: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((3, 4, columns, 16)).astype(dtype)


@pytest.mark.parametrize("columns", [1, 9])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_rotation_turns_as_in_mlx_lm(name: str, columns: int) -> None:
    plain, x = EMBEDDINGS[name], make_rows(columns)
    rotation = replace(plain)
    assert isinstance(rotation, Rotation)
    for offset in (0, 77, mx.array([0, 5, 400]), mx.array([7, 7, 8])):
        # Twice, for the second time nothing is computed anew.
        for _ in range(2):
            assert mx.allclose(rotation(x, offset=offset), plain(x, offset=offset), rtol=1e-5, atol=1e-5).item()


@pytest.mark.parametrize("name", LEFT)
def test_other_rotations_are_left_to_mlx_lm(name: str) -> None:
    x = make_rows(3, mx.bfloat16 if name == "wide" else mx.float32)
    assert mx.array_equal(replace(LEFT[name])(x, offset=5), LEFT[name](x, offset=5)).item()


def test_angles_are_computed_once_in_a_step(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, plain = list[mx.array](), mx.cos

    def cos(angles: mx.array) -> mx.array:
        computed.append(angles)
        return plain(angles)

    model: Any = load_network(StagePlan(model=llama), read_checkpoint(llama).tensors)[0].model
    replace_rotations(model)
    ropes = [layer.self_attn.rope for layer in model.layers]
    assert {type(rope) for rope in ropes} == {Rotation}
    monkeypatch.setattr(mx, "cos", cos)
    x = mx.ones((2, 4, 1, 8))
    for step in (1, 2):
        starts = mx.array([3, 5])  # equal, but of another step
        for rope in ropes:
            rope(x, offset=starts)
        assert len(computed) == step
