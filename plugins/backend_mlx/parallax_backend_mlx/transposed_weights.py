"""Stores weights transposed, in which layout a CPU multiplies by them fastest.

A linear layer computes ``x @ weight.T``, and for a few rows of ``x`` a BLAS is 1.1 to 1.5 times faster if the
transposed matrix is contiguous in memory. The weight keeps its shape: only its strides change. The layer also keeps the
transposed matrix, which saves one operation per layer and step. Where the BLAS reads small matrices in place, panels of
the transposed matrix are faster still; see `parallax_backend_mlx.panel_weights`.
"""

from __future__ import annotations

from parallax_backend_mlx.panel_weights import PanelEmbedding, PanelLinear, fits_panels
from parallax_backend_mlx.runtime import Embedding, Linear, Module, mx


class TransposedWeight(Linear):
    """A linear layer that multiplies by the transposed weight, which is contiguous.

    Args:
        plain: the layer to replace; its weight is transposed.
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
    """Transpose the weights of linear layers, and of embeddings, which may be the head; one matrix at a time.

    Does nothing for dtypes that BLAS does not have.
    """
    turned: dict[int, Module | None] = {}  # a module may be in several places
    for module in model.modules():  # type: ignore[no-untyped-call]
        for name, child in list(module.items()):
            if type(child) not in {Linear, Embedding} or (type(child) is Embedding and _reads_weight(model, name)):
                continue
            if id(child) not in turned:
                turned[id(child)] = turn_module(child)
            if layer := turned[id(child)]:
                setattr(module, name, layer)
        if isinstance(module, (Linear, Embedding)) and "weight" in module and module.weight.dtype == mx.float32:
            weight = mx.contiguous(module.weight.T)
            mx.eval(weight)
            module.weight = weight.T


def turn_module(plain: Linear | Embedding) -> Module | None:
    """Return a replacement for a module, which is not used afterwards, or None."""
    if fits_panels(plain.weight):
        return PanelLinear(plain) if isinstance(plain, Linear) else PanelEmbedding(plain)
    return TransposedWeight(plain) if isinstance(plain, Linear) and plain.weight.dtype == mx.float32 else None


def _reads_weight(model: Module, name: str) -> bool:
    """Whether the code of a model, as that of Llama 4, multiplies by the weight of an embedding itself.

    Panels would be put together for it at every step.
    """
    codes = (getattr(type(module).__call__, "__code__", None) for module in model.modules())  # type: ignore[no-untyped-call]
    return any({name, "weight"} <= set(code.co_names) for code in codes if code)
