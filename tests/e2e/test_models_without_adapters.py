"""Models without an adapter run on the code of transformers or mlx-lm, as in transformers, or say why they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

from parallax_core.api import LayerRange, Stage, StagePlan, Unsupported, silent
from parallax_core.checkpoint.reader import find_missing, find_names
from parallax_core.models.catalog import Catalog
from parallax_core.models.layer_fetch import LayerFetcher
from parallax_core.models.stages import open_stage
from parallax_core.plugins.host import PluginHost
from parallax_core.testing.checks.chain import Chain
from parallax_models.check.report import check
from tests.support import checkpoints
from tests.support.checkpoints import EXPERTS, LATENT, find_layer
from tests.support.fakehub import FakeHub
from tests.support.families import Family, Trial, run_chunks
from tests.support.mlx_backend import BroughtMlx
from tests.support.torch_backend import TorchBackend

NAME = "tiny/estimated"
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "apertus": ({}, "", "has no 'mlp_bias'"),
    "bloom": ({"n_head": 4, "n_layer": 4}, "has no layers", "no architecture called 'bloom'"),
    "cohere2": ({}, "", ""),
    "exaone_moe": (
        EXPERTS | {"layer_types": ["full_attention"] * 4, "n_group": 1, "num_shared_experts": 1, "topk_group": 1},
        "",
        "no 'is_moe_layer'",
    ),
    "granitemoe": (EXPERTS, "", ""),
    "helium": ({}, "", ""),
    "jamba": ({}, "has no norm", "does not read rope_theta"),
    "minimax": (
        EXPERTS | {"block_size": 8, "layer_types": ["linear_attention", "full_attention"] * 2},
        "a cache other",
        "no 'shared_intermediate_size'",
    ),
    "mamba": ({}, "has no embed_tokens", "does not read rope_theta"),
    "nemotron": ({}, "", ""),
    "olmoe": (EXPERTS, "", ""),
    "opt": ({"ffn_dim": 48, "word_embed_proj_dim": 32}, "has no norm", "no architecture called 'opt'"),
    "stablelm": ({}, "", ""),
    "youtu": (LATENT, "differ in width", "no architecture called 'youtu'"),
}
"""Model types, their settings, and the words of the refusal on torch and on MLX; empty where they run."""
UNUSUAL = "inkling_text"
"""A model type that lacks settings which all others have."""
WITHOUT_DEFAULTS = "gemma4_assistant"
"""A model type whose default settings transformers refuses."""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.mark.parametrize("name", ["torch", "mlx"])
@pytest.mark.parametrize("kind", KINDS)
def test_model_without_an_adapter_runs_or_is_refused_for_a_reason(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, on_torch, on_mlx = KINDS[kind]
    monkeypatch.setitem(checkpoints.OTHERS, kind, changes)
    backend: TorchBackend | BroughtMlx = TorchBackend() if name == "torch" else BroughtMlx()
    family, words = Family(kind, tmp_path, backend), on_torch if name == "torch" else on_mlx
    if words:
        with pytest.raises(Unsupported, match=words):
            backend.check_model(StagePlan(model=tmp_path))
        with pytest.raises(Unsupported):
            family.open_chain(())
        return
    backend.check_model(StagePlan(model=tmp_path))
    with family.open_chain(()) as chain:
        run_chunks(trial := Trial(family, chain), 30, 7)
        assert trial.find_error() < 1e-4


def fetch_stage(home: Path, layers: LayerRange, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Fetch the layers of a stage to a home of their own, and open it as core does; nothing else is there."""
    monkeypatch.setenv("PARALLAX_HOME", str(home))
    host = PluginHost.prepare()
    folder = LayerFetcher(host, Catalog(host)).fetch(NAME, layers, silent).path
    here = {find_layer(name) for name in find_names(folder) - find_missing(folder) if ".mlp." in name}
    assert here == {*range(layers.start, layers.stop)}  # small tensors come with their neighbours
    [offer] = [each for each in host.backends().offers if each.spec.name == "torch"]
    return open_stage(host, offer, StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=1e-3))


def test_stages_of_a_model_without_an_adapter_fetch_their_layers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = Family("cohere", tmp_path / "whole", TorchBackend(), hidden_size=96, intermediate_size=512)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        hub.add(NAME, {path.name: path.read_bytes() for path in family.folder.iterdir()} | {"tokenizer.json": b"{}"})
        halves = LayerRange(0, 1), LayerRange(1, 4)
        with Chain([fetch_stage(tmp_path / str(each.start), each, monkeypatch) for each in halves]) as chain:
            run_chunks(trial := Trial(family, chain), 30, 7)
            assert trial.find_error() < 1e-4
        close_session()


@pytest.mark.parametrize(
    "kind",
    [
        UNUSUAL,
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in NAMES if kind not in (UNUSUAL, WITHOUT_DEFAULTS)),
    ],
)
def test_every_model_of_transformers_gets_an_answer(kind: str, tmp_path: Path) -> None:
    config = AutoConfig.for_model(kind).to_dict() | {"architectures": [NAMES[kind]]}
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    found = check(PluginHost.prepare(), kind, tmp_path)
    assert all(each.whole or each.reason for each in found.backends)
    assert found.layers or found.problem
