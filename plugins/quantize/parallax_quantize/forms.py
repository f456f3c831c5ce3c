"""The names of what a model can become; they bring no framework, for the help of the command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from parallax_quantize.gguf.mix import MIXES

Layout = Literal["mlx", "compressed-tensors"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
READERS: Mapping[Layout, str] = {
    "mlx": "mlx-lm, and Parallax on torch and mlx",
    "compressed-tensors": "vLLM and SGLang, and Parallax on torch and mlx",
}
BITS = {"int8": 8, "int5": 5, "int4": 4, "int4_plain": 4, "mxfp4": 4}
"""The bits of the matrices of layers, by the name of a form."""
MIX = "int4"
"""The form whose more sensitive matrices have more bits, where the layout can say so."""
GROUPS = (32, 64, 128)
"""How many inputs may share a scale."""
GGUF = "gguf:"
"""Before the type of a GGUF file, in the name of a form."""
GGUF_FORMS = tuple(f"{GGUF}{name}" for name in MIXES)
"""The forms that are GGUF files, whole with the tokenizer."""
GGUF_READERS = "llama.cpp, and Parallax on torch and mlx"
