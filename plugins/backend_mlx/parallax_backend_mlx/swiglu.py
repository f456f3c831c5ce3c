"""The gate of most feed-forward layers, ``gate * sigmoid(gate) * x``, as a CPU computes it fastest."""

from __future__ import annotations

from parallax_backend_mlx.exponential import LARGEST, exponentiate
from parallax_backend_mlx.runtime import mx, plain_swiglu


def multiply_gate(gate: mx.array, x: mx.array) -> mx.array:
    """Return ``gate * sigmoid(gate) * x``, where mlx-lm has ``swiglu``.

    Args:
        gate: of any shape; anything but float32 is left to mlx-lm.
        x: likewise.
    """
    if gate.dtype != mx.float32 or x.dtype != mx.float32 or gate.shape != x.shape:
        plain: mx.array = plain_swiglu(gate, x)
        return plain
    # One axis of tokens, so that there are no more shapes to compile for than numbers of tokens in a step.
    width = gate.shape[-1]
    return _multiply(gate.reshape(-1, width), x.reshape(-1, width)).reshape(gate.shape)


@mx.compile
def _multiply(gate: mx.array, x: mx.array) -> mx.array:
    return gate / (1 + exponentiate(mx.minimum(-gate, LARGEST))) * x
