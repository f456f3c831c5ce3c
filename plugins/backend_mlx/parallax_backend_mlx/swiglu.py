"""Computes the gate of most feed-forward layers, ``gate * sigmoid(gate) * x``, fast on a CPU."""

from __future__ import annotations

from parallax_backend_mlx.exponential import LARGEST, exponentiate
from parallax_backend_mlx.runtime import mx, plain_swiglu


def multiply_gate(gate: mx.array, x: mx.array) -> mx.array:
    """Return ``gate * sigmoid(gate) * x``; replaces mlx-lm's ``swiglu``.

    Args:
        gate: any shape; dtypes other than float32 are left to mlx-lm.
        x: the same shape and dtype as ``gate``.
    """
    if gate.dtype != mx.float32 or x.dtype != mx.float32 or gate.shape != x.shape:
        plain: mx.array = plain_swiglu(gate, x)
        return plain
    # One axis of tokens, so that there is only one shape to compile for each number of tokens in a step.
    width = gate.shape[-1]
    return _multiply(gate.reshape(-1, width), x.reshape(-1, width)).reshape(gate.shape)


@mx.compile
def _multiply(gate: mx.array, x: mx.array) -> mx.array:
    return gate / (1 + exponentiate(mx.minimum(-gate, LARGEST))) * x
