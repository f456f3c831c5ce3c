"""The architectures of GGUF files: their settings and tensors under the names of transformers.

Source of the names in GGUF files: ``gguf.constants``; of their meaning, the graphs and conversions of llama.cpp.
"""

from __future__ import annotations

from parallax_source_pypi.dense_architectures import DENSE_ARCHITECTURES
from parallax_source_pypi.rows import Architecture
from parallax_source_pypi.sparse_architectures import SPARSE_ARCHITECTURES

ARCHITECTURES: dict[str, Architecture] = DENSE_ARCHITECTURES | SPARSE_ARCHITECTURES
"""By ``general.architecture``; of some, files with further tensors are another architecture in transformers."""
NAMES = tuple(name for name in ARCHITECTURES if " " not in name)
