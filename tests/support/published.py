"""Writes config.json as the authors of a model do, where transformers writes other words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parallax_models import step3p5
from tests.support.checkpoints import SERVED

Json = dict[str, Any]


def unwrap(config: Json, name: str) -> Json:
    """Return the text model's settings alone, under an architecture of its own."""
    return {**config["text_config"], "architectures": [name]}


def spell_step(config: Json) -> Json:
    """Return the settings of Step 3.5 with the names of its authors, and lists that go on for further layers."""
    named = {new: old for old, new in step3p5.NAMES.items()} | {"share_expert_dim": "share_expert_dim"}
    gone = ("mlp_layer_types", "rope_parameters", "num_sliding_attention_heads", "per_layer_config")
    found = {named.get(name, name): value for name, value in config.items() if name not in gone}
    sparse = [index for index, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    kinds, ropes = config["layer_types"], config["rope_parameters"]
    return found | {
        "attention_other_setting": {"num_attention_heads": config["num_sliding_attention_heads"]},
        "layer_types": [*kinds, "full_attention"],
        "moe_layers_enum": ",".join(map(str, sparse)),
        "partial_rotary_factors": [ropes[kind].get("partial_rotary_factor", 1.0) for kind in kinds],
        "rope_theta": [ropes[kind]["rope_theta"] for kind in kinds],
    }


PUBLISHED: Mapping[str, tuple[str, Callable[[Json], Json]]] = {
    "step3p5": ("step3p7", lambda config: spell_step(unwrap(config, "Step3p5ForCausalLM")))
}
"""Model types that transformers lacks: of which of its types they are the text, and how their settings are written."""
KINDS = (*SERVED, *PUBLISHED)
"""Every model type that is compared."""


def respell(kind: str, folder: Path) -> None:
    """Write the config.json of a model in ``folder`` as that of a model of ``kind``."""
    path = folder / "config.json"
    path.write_text(json.dumps(PUBLISHED[kind][1](json.loads(path.read_text()))))
