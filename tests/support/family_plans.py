"""Plans of stages of families that engines cannot split, as core completes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from parallax_core.api import LayerRange, StagePlan
from parallax_core.models.adapters import find_shape
from parallax_core.plugins.host import PluginHost

REFUSED = {
    "gemma4_text": "Gemma4ForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
}
"""By model type, the architecture: recurrent states, or embeddings of each layer."""


def make_plan(folder: Path, model_type: str, architecture: str, **changes: Any) -> StagePlan:
    """Write the config.json of a family as transformers has it, and return the plan of its layers from 1 on."""
    config = {**AutoConfig.for_model(model_type).to_dict(), "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(config, default=str))
    shape = find_shape(PluginHost.prepare(), config)
    assert shape is not None
    return StagePlan(model=folder, layers=LayerRange(1, len(shape.layers)), shape=shape, **changes)
