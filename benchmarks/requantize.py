"""Writes a GGUF file in another weight format with llama.cpp's own quantizer; runs in the environment of llama.cpp.

    PYTHON benchmarks/requantize.py SOURCE TARGET FORMAT

A quantized source is read back to float32 first: eight bits keep its weights almost as they are, and four bits in
another format round them once more, which costs quality, not speed. It imports nothing from this repository.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_format(source: Path, target: Path, name: str) -> None:
    """Write ``source`` in the format ``name``, such as Q4_0, to ``target``, which appears when it is complete."""
    llama_cpp: Any = importlib.import_module("llama_cpp")
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    settings.allow_requantize = True
    partial = target.with_suffix(".part")
    if status := llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), settings):
        message = f"llama.cpp could not write {source.name} in {name}: status {status}"
        raise RuntimeError(message)
    partial.rename(target)


def main(arguments: Sequence[str]) -> None:
    """Write the file."""
    source, target, name = arguments
    write_format(Path(source), Path(target), name)


if __name__ == "__main__":
    main(sys.argv[1:])
