"""Reads quantised weights of model folders as float32, exactly. A library, not a plugin."""

from parallax_formats.matrix import Grid, Matrix, Parts, split_name
from parallax_formats.schemes import (
    ACTIVATIONS,
    FORMATS,
    GGUF,
    Format,
    find_settings,
    group_tensors,
    name_method,
)

__all__ = [
    "ACTIVATIONS",
    "FORMATS",
    "GGUF",
    "Format",
    "Grid",
    "Matrix",
    "Parts",
    "find_settings",
    "group_tensors",
    "name_method",
    "split_name",
]
