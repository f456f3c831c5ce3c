"""The names of what a model can become; they bring no framework, for the help of the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Layout = Literal["mlx", "compressed-tensors"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
READERS: Mapping[Layout, str] = {
    "mlx": "mlx-lm, and Parallax on torch and mlx",
    "compressed-tensors": "vLLM and SGLang, and Parallax on torch and mlx",
}
BITS = {"int8": 8, "int4": 4, "mxfp4": 4}
"""The bits of the matrices of layers, by the name of a form."""
GROUPS = (32, 64, 128)
"""How many inputs may share a scale."""
