"""A kit for a family of which only a config.json is there: transformers writes tiny models of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallax_core.api import LayerRange, StagePlan, read_object
from parallax_core.api.cli import PluginHost
from parallax_core.testing.model import ModelConformance
from parallax_models.testing.stages import CutModel, check_closure, check_planes, check_pools

SIZES = {
    "head_dim": 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "shared_expert_intermediate_size": 16,
    "sliding_window": 8,
    "vocab_size": 97,
}
"""What a tiny model has in place of larger sizes."""
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type")
"""Settings with an entry for each layer."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class FamilyConformance(ModelConformance):
    """Holds the adapter of a family to its contract by tiny models that transformers writes.

    Subclass it in a test module under a name that begins with ``Test``, and give ``spec`` and `config`.
    """

    config: Path
    """The config.json of a real model."""
    changes: Mapping[str, Any] = {}
    """Further settings of the tiny model, where `SIZES` is not enough."""
    refused: Sequence[tuple[str, Any]] = (("num_hidden_layers", "two"), ("vocab_size", 0), ("hidden_size", None))

    def make_checkpoints(self, folder: Path) -> Sequence[Path]:
        """Return a tied model, and one that is not."""
        small = {**shrink(read_object(self.config)), **self.changes}
        made = []
        for is_tied in (True, False):
            place = folder / f"tied {is_tied}"
            write_random({**small, "tie_word_embeddings": is_tied}, place)
            made.append(place)
        return made

    def test_torch_computes_what_transformers_does(self, tmp_path: Path) -> None:
        """The torch backend compares layers with transformers as it loads them: the whole model, and two halves."""
        [_, folder] = self.make_checkpoints(tmp_path)
        backend: Any = PluginHost.prepare().backends().get("torch").spec.factory.load()()
        count = len(self.adapter.read_shape(read_object(folder / "config.json")).layers)
        for layers in (None, LayerRange(0, count // 2), LayerRange(count // 2, count)):
            plan = StagePlan(model=folder, layers=layers, dtype="float32", memory_fraction=0.001)
            backend.open_stage(plan).close()

    def test_stages_do_what_the_adapter_says(self, tmp_path: Path) -> None:
        """Planes, pools and tensors of stages on the torch backend, wherever they begin; see `stages`."""
        backend: Any = PluginHost.prepare().backends().get("torch").spec.factory.load()()
        brought = self.spec.blocks.get("torch")
        blocks = brought.load() if brought else None
        for folder in self.make_checkpoints(tmp_path):
            model = CutModel(
                folder=folder,
                adapter=self.adapter,
                open_stage=lambda plan: backend.open_stage(replace(plan, blocks=blocks)),
            )
            check_planes(model)
            check_pools(model)
            check_closure(model, tmp_path / f"stages of {folder.name}")


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json with the sizes of a tiny model, and all other settings as they are."""
    small = {name: min(value, SIZES[name]) if name in SIZES else value for name, value in config.items() if value}
    small |= {name: value for name, value in config.items() if not value}
    small |= {name: value[: SIZES["num_hidden_layers"]] for name, value in small.items() if name in LISTS}
    small |= {name: 1 for name in TOKENS if config.get(name) is not None}
    return small


def write_random(config: Mapping[str, Any], folder: Path) -> None:
    """Write a model of random weights as transformers writes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {name: value for name, value in config.items() if name not in {"model_type", "dtype", "torch_dtype"}}
    made = AutoConfig.for_model(config["model_type"], **settings)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(made, dtype=torch.float32).save_pretrained(folder)
