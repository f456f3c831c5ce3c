"""What the authors of a model recommend, where its GGUF file does not say it."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_source_pypi.plugin import SMOLLM2

SAMPLING: Mapping[str, Mapping[str, float]] = {
    # https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, "How to use"
    SMOLLM2.rpartition("=")[2]: {"temperature": 0.2, "top_p": 0.9},
}
"""What they recommend for sampling, by the SHA-256 of the wheel their model is in."""
