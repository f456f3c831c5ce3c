"""The kit of an old backend, run where it alone is installed: what is tested is what its entry point leads to."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import plain

from parallax_core.plugins.host import PluginHost
from parallax_core.testing.backend import BackendConformance
from parallax_core.testing.stage import StageConformance


@cache
def make_model() -> Path:
    return plain.write_model(Path(tempfile.mkdtemp()) / "llama")


class TestOldBackend(BackendConformance, StageConformance):
    spec = PluginHost.discover().backends().get("numpy").spec
    num_layers = plain.LAYERS
    exact = False

    def make_model(self) -> Path:
        return make_model()

    def compute_logits(self, tokens: Sequence[int]) -> Sequence[float]:
        return plain.compute_logits(tokens)
