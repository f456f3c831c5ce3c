"""Hy4 as it is published: transformers writes other names for the same tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.support.checkpoints import INDEX
from tests.support.families import TOLERANCE, Family, Trial, run_chunks
from tests.support.torch_backend import TorchBackend

NAMES = (
    (r"\.hc_pre\.(hc_\w+_layer)\.", r".\1.hc_pre."),
    (r"\.hc_pre\.hc_head\.", ".hc_head."),
    (r"\.mlp\.(.*)linear_gate\.", r".mlp.\1gate_proj."),
)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def publish(folder: Path) -> set[str]:
    """Rename the tensors of a checkpoint, in one file; return the names."""
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for path in (*files, folder / INDEX):
        path.unlink()
    for pattern, name in NAMES:
        tensors = {re.sub(pattern, name, old): tensor for old, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return set(tensors)


def test_published_names_are_read(tmp_path: Path) -> None:
    family = Family("hy_v4", tmp_path, TorchBackend())
    names = publish(tmp_path)
    assert {"model.layers.0.hc_attn_layer.hc_pre.hc_fn", "model.hc_head.hc_head_fn"} <= names
    assert "model.layers.0.mlp.gate_proj.weight" in names
    with family.open_chain((2,), 1e-3) as chain:
        trial = Trial(family, chain)
        run_chunks(trial, 20, 20)
        assert trial.find_error() < TOLERANCE
