"""Models without an adapter run on the code of transformers or mlx-lm, as in transformers, or say why they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallax_core.api import Backend, Unsupported
from tests.support import checkpoints
from tests.support.checkpoints import EXPERTS
from tests.support.families import Family, Trial, run_chunks
from tests.support.mlx_backend import BroughtMlx
from tests.support.torch_backend import TorchBackend

KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "apertus": ({}, "", "has no 'mlp_bias'"),
    "bloom": ({"n_head": 4, "n_layer": 4}, "has no layers", "no architecture called 'bloom'"),
    "cohere2": ({}, "", ""),
    "granitemoe": (EXPERTS, "in another form than transformers", ""),
    "helium": ({}, "", ""),
    "jamba": ({}, "has no norm", "does not read rope_theta"),
    "mamba": ({}, "has no embed_tokens", "does not read rope_theta"),
    "nemotron": ({}, "", ""),
    "olmoe": (EXPERTS, "in another form than transformers", ""),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, "has no norm", "no architecture called 'opt'"),
    "stablelm": ({}, "", ""),
}
"""Model types, their settings, and the words of the refusal on torch and on MLX; empty where they run."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("kind", KINDS)
def test_model_without_an_adapter_runs_or_is_refused_for_a_reason(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, on_torch, on_mlx = KINDS[kind]
    monkeypatch.setitem(checkpoints.OTHERS, kind, changes)
    backend: Backend = TorchBackend() if name == "torch" else BroughtMlx()
    family, words = Family(kind, tmp_path, backend), on_torch if name == "torch" else on_mlx
    if words:
        with pytest.raises(Unsupported, match=words):
            family.open_chain(())
        return
    with family.open_chain(()) as chain:
        run_chunks(trial := Trial(family, chain), 30, 7)
        assert trial.find_error() < 1e-4
