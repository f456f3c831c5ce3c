"""The backend held to the whole contract by Parallax's own kits, and to a plain Llama."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import plain

from parallax_backend_numpy.plugin import parallax_register_backends
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.stage import StageConformance

[SPEC] = parallax_register_backends()


@cache
def make_model() -> Path:
    return plain.write_model(Path(tempfile.mkdtemp()) / "llama")


class TestNumpy(BackendConformance, StageConformance):
    spec = SPEC
    num_layers = plain.LAYERS
    exact = False  # it computes with floats

    def make_model(self) -> Path:
        return make_model()

    def compute_logits(self, tokens: Sequence[int]) -> Sequence[float]:
        return plain.compute_logits(tokens)
