"""Reads GGUF files: keys and values, tensors, and rows of blocks as float32."""

from parallax_formats.gguf.blocks import PLAIN, Blocks, are_finite, is_read, read_chunks, read_named, read_rows
from parallax_formats.gguf.fields import Fields
from parallax_formats.gguf.file import GgufFile, HeaderNotHere, TensorInfo, damaged, open_gguf, read_header

__all__ = [
    "PLAIN",
    "Blocks",
    "Fields",
    "GgufFile",
    "HeaderNotHere",
    "TensorInfo",
    "are_finite",
    "damaged",
    "is_read",
    "open_gguf",
    "read_chunks",
    "read_header",
    "read_named",
    "read_rows",
]
