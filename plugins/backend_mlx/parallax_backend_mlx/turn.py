"""Stores weights the way a CPU multiplies by them fastest.

A linear layer computes ``x @ weight.T``, and for a few rows of ``x`` a BLAS is 1.1 to 1.5 times faster if the
transposed matrix is the one that lies in memory in one piece. The weight keeps its shape: only its strides change.
"""

from __future__ import annotations

from parallax_backend_mlx.runtime import Embedding, Linear, Module, mx


def turn_weights(model: Module) -> None:
    """Turn the weights of linear layers, and of embeddings, which may be the head; a matrix at a time.

    On a GPU, and for dtypes no BLAS has, nothing changes.
    """
    if mx.default_device() == mx.Device(mx.gpu):
        return
    for module in model.modules():  # type: ignore[no-untyped-call]
        if isinstance(module, (Linear, Embedding)) and module.weight.dtype == mx.float32:
            turned = mx.contiguous(module.weight.T)
            mx.eval(turned)
            module.weight = turned.T
