"""Stores weights in panels of a few columns, for which a BLAS has products that read them in place.

OpenBLAS packs the whole weight for every product of a few rows, which costs several times the product itself, unless
the matrices are small: on processors with AVX-512 it has kernels that read those where they are. So a weight is kept as
many small matrices, and one batched product multiplies by all of them.
"""

from __future__ import annotations

from parallax_backend_mlx.runtime import BLAS, Embedding, Linear, Module, mx
from parallax_backend_mlx.split_products import split_product

WIDTH = 64
"""Columns of a panel: four vectors of AVX-512, the largest tile of OpenBLAS's kernel for small matrices."""
MOST_ROWS = 256
"""With more rows, the weight is put together first: a copy then costs less than packing the rows for each panel."""


def fits_panels(weight: mx.array) -> bool:
    """Whether panels are the fastest form of a weight, shape [outputs, inputs], and divide it."""
    return BLAS.has_small_products and weight.dtype == mx.float32 and len(weight) % WIDTH == 0


def make_panels(weight: mx.array) -> mx.array:
    """Return a weight, shape [outputs, inputs], as panels, shape [outputs / WIDTH, inputs, WIDTH]."""
    outputs, inputs = weight.shape
    panels = mx.contiguous(weight.reshape(outputs // WIDTH, WIDTH, inputs).transpose(0, 2, 1))
    mx.eval(panels)
    return panels


def multiply_panels(x: mx.array, panels: mx.array) -> mx.array:
    """Return ``x @ weight.T``, shape [..., outputs], for ``x`` of shape [..., inputs] and the panels of a weight."""
    return split_product(_multiply_part, x, panels)


def _multiply_part(x: mx.array, panels: mx.array) -> mx.array:
    count, inputs, width = panels.shape
    rows = x.size // inputs
    if rows > MOST_ROWS:
        return x @ panels.transpose(1, 0, 2).reshape(inputs, count * width)
    parts = x.reshape(1, rows, inputs) @ panels
    return parts.transpose(1, 0, 2).reshape(*x.shape[:-1], count * width)


def restore_weight(panels: mx.array) -> mx.array:
    """Return the weight of panels, shape [outputs, inputs]: a copy."""
    return panels.transpose(0, 2, 1).reshape(-1, panels.shape[1])


class PanelLinear(Linear):
    """A linear layer whose weight is stored in panels.

    Args:
        plain: the layer to replace; it loses its weight.
    """

    def __init__(self, plain: Linear) -> None:
        Module.__init__(self)  # type: ignore[no-untyped-call]  # without a weight of its own
        self.panels = make_panels(plain.pop("weight"))
        if "bias" in plain:
            self.bias = plain.bias

    @property
    def weight(self) -> mx.array:  # type: ignore[override]
        """The weight, shape [outputs, inputs]: a copy each time."""
        return restore_weight(self.panels)

    def __call__(self, x: mx.array) -> mx.array:
        """Return ``x @ weight.T + bias``, shape [..., outputs]."""
        product = multiply_panels(x, self.panels)
        return product + self.bias if "bias" in self else product


class PanelEmbedding(Embedding):
    """An embedding with its weight in panels; it may be the head, too.

    Args:
        plain: the embedding to replace; it loses its weight.
    """

    def __init__(self, plain: Embedding) -> None:
        Module.__init__(self)  # type: ignore[no-untyped-call]  # without a weight of its own
        self.panels = make_panels(plain.pop("weight"))

    @property
    def weight(self) -> mx.array:  # type: ignore[override]
        """The weight, shape [tokens, width]: a copy each time."""
        return restore_weight(self.panels)

    def __call__(self, tokens: mx.array) -> mx.array:
        """Return the rows of ``tokens``, shape [..., width]."""
        return self.panels.transpose(0, 2, 1)[tokens // WIDTH, tokens % WIDTH]

    def as_linear(self, x: mx.array) -> mx.array:
        """Return ``x @ weight.T``, shape [..., tokens]."""
        return multiply_panels(x, self.panels)
