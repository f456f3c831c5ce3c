"""Reads quantised weights of model folders as float32, exactly. A library, not a plugin."""

from parallax_formats.matrix import Matrix, Parts
from parallax_formats.schemes import FORMATS, find_settings, group_tensors, name_method

__all__ = ["FORMATS", "Matrix", "Parts", "find_settings", "group_tensors", "name_method"]
