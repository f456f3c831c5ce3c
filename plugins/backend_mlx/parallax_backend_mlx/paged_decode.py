"""Attention of decodes on Metal, directly from the pages.

Model files of mlx-lm fetch all keys and values of a layer before they attend to them. MLX computes only arrays that are
used, so if the kernel reads the pages, keys and values are never gathered.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from parallax_backend_mlx.cache_view import PagedView
from parallax_backend_mlx.metal_kernel import TOLERANCE, DecodeKernel, Pages, check_kernel, fits
from parallax_backend_mlx.runtime import mx, plain_attention

Attention = Callable[..., mx.array]
"""A function of queries, keys, values and `Options`."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of mlx-lm's function after queries, keys and values, in its order and with its names."""

    cache: object
    """The cache of the layer."""
    scale: float
    """The factor of the scores."""
    mask: mx.array | str | None
    """The mask, in one of mlx-lm's forms."""
    sinks: mx.array | None = None
    """See `mlx.core.fast.scaled_dot_product_attention`."""


class Kernel(Protocol):
    """The function that attends to pages; see `DecodeKernel.run`."""

    def run(self, queries: mx.array, pages: Pages, scale: float) -> mx.array:
        """Return the attention of one query per row."""


class PagedAttention:
    """Replaces mlx-lm's attention function, with the same arguments.

    Args:
        kernel: for decodes whose keys and values are in pages, and whose mask is that of their pages.
        dtypes: the dtypes that the kernel computes correctly; everything else is left to mlx-lm.
    """

    def __init__(self, kernel: Kernel, dtypes: frozenset[mx.Dtype]) -> None:
        self._kernel = kernel
        self._dtypes = dtypes

    def __call__(
        self,
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        *options: Any,  # noqa: ANN401  # arguments of mlx-lm
        **named: Any,  # noqa: ANN401  # arguments of mlx-lm
    ) -> mx.array:
        """Return the attention of ``queries``; see `parallax_backend_mlx.attention.attend`."""
        asked = Options(*options, **named)
        pages = self._find_pages(queries, keys, values, asked)
        if pages is not None:
            return self._kernel.run(queries, pages, asked.scale)
        plain: Attention = plain_attention
        return plain(queries, keys, values, *options, **named)

    def _find_pages(self, queries: mx.array, keys: mx.array, values: mx.array, asked: Options) -> Pages | None:
        """Return the pages to read instead of ``keys`` and ``values``, or None if these are not the pages' content."""
        view = asked.cache
        if asked.sinks is not None or not isinstance(view, PagedView) or not fits(queries, keys, values):
            return None
        # A model may have changed the fetched keys.
        if keys is not view.keys or values is not view.values:
            return None
        if queries.dtype not in self._dtypes or {keys.dtype, values.dtype} != {queries.dtype}:
            return None
        return view.find_pages(asked.mask)


@functools.cache
def find_attention() -> PagedAttention | None:
    """Return the attention function with the kernel, or None if it fails for every dtype; logs the reasons."""
    kernel = DecodeKernel()
    faults = {dtype: check_kernel(kernel, dtype) for dtype in TOLERANCE}
    for dtype, fault in faults.items():
        if fault:
            logger.warning("decode kernel not used, keys are gathered dtype=%s reason=%s", dtype, fault)
    good = frozenset(dtype for dtype, fault in faults.items() if not fault)
    return PagedAttention(kernel, good) if good else None
