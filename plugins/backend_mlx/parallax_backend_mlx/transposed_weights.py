"""Stores weights the way a CPU multiplies by them fastest.

A linear layer computes ``x @ weight.T``, and for a few rows of ``x`` a BLAS is 1.1 to 1.5 times faster if the
transposed matrix is the one that lies in memory in one piece. The weight keeps its shape: only its strides change.
A layer also keeps it as it is multiplied by, so that a step has one operation less for each.
"""

from __future__ import annotations

from parallax_backend_mlx.runtime import Embedding, Linear, Module, mx


class TransposedWeight(Linear):
    """A linear layer that multiplies by the transposed weight, which lies in one piece.

    Args:
        plain: the layer that was there; its weight is turned.
    """

    def __init__(self, plain: Linear) -> None:
        super().__init__(1, 1, bias=False)
        self._turned = mx.contiguous(plain.weight.T)
        mx.eval(self._turned)
        self.weight = plain.weight = self._turned.T
        if "bias" in plain:
            self.bias = plain.bias

    def __call__(self, x: mx.array) -> mx.array:
        """Return ``x @ weight.T + bias``, shape [..., outputs]."""
        return mx.addmm(self.bias, x, self._turned) if "bias" in self else x @ self._turned


def turn_weights(model: Module) -> None:
    """Turn the weights of linear layers, and of embeddings, which may be the head; a matrix at a time.

    For dtypes no BLAS has, nothing changes.
    """
    for module in model.modules():  # type: ignore[no-untyped-call]
        for name, child in list(module.items()):
            if type(child) is Linear and child.weight.dtype == mx.float32:
                setattr(module, name, TransposedWeight(child))
        if isinstance(module, (Linear, Embedding)) and module.weight.dtype == mx.float32:
            turned = mx.contiguous(module.weight.T)
            mx.eval(turned)
            module.weight = turned.T
