"""What config.json leaves out is what transformers' own class of the model takes: each setting is left out in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from parallax_backend_torch.api import Config
from parallax_core.api import Unsupported
from parallax_models.families import FAMILIES
from tests.support.checkpoints import SERVED, make_config
from tests.support.defaults import PATH, UNREAD, list_defaults

Json = dict[str, Any]
SPECS = {name: spec for spec in FAMILIES for name in spec.architectures}
IDENTITY = ("architectures", "model_type", "num_hidden_layers")
"""Keys that say which model it is."""
ALIASES = {"n_routed_experts", "num_experts", "num_local_experts"}
"""Names of one setting, of which the small models have several."""
DENSE = {"first_k_dense_replace"}
"""Of small models whose class in transformers reads it from ``mlp_layer_types`` alone."""
ALONE = ("step3p7", "layer_types")
"""A type, and a setting without which it has one kind of layer, and one rope."""

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_file_of_defaults_is_that_of_transformers() -> None:
    assert json.loads(PATH.read_text("utf-8")) == list_defaults(), "run `python -m tests.support.defaults`"


def list_lacking(kind: str) -> Iterator[tuple[str, Json, Json]]:
    """Yield each setting of a small model, with the config.json that lacks it, and that which transformers makes of it.

    A setting without which transformers makes none is left out.
    """
    whole = make_config(kind)
    inner = whole.get("text_config", whole)
    made = type(AutoConfig.for_model(whole["model_type"]).get_text_config())
    unread = {*(UNREAD if "kv_lora_rank" in inner else ()), *DENSE.difference(made.__dataclass_fields__)}
    inner = {name: value for name, value in inner.items() if name not in unread}
    for key in inner:
        lacking = {name: value for name, value in inner.items() if name != key}
        try:
            explicit = json.loads(json.dumps(made(**lacking).to_dict(), default=str))
            explicit = {name: value for name, value in explicit.items() if name not in unread}
        except (StrictDataclassError, AttributeError, KeyError, TypeError, ValueError):
            continue
        if key not in ALIASES.union(IDENTITY):
            yield key, wrap(whole, lacking), wrap(whole, explicit)


def wrap(whole: Json, inner: Json) -> Json:
    """Return the config.json of a model with other settings of its text model."""
    if "text_config" in whole:
        return {**whole, "text_config": inner}
    return {**inner, "architectures": whole["architectures"], "model_type": whole["model_type"]}


def describe(config: Json) -> Any:
    """Return the shape of a model, and what its blocks are built with; or the words in which it is refused."""
    spec = SPECS[config["architectures"][0]]
    try:
        shape = spec.adapter.load().read_shape(config)
        blocks = spec.blocks["torch"].load()(Config(config))
    except Unsupported as error:
        return error.message
    made = {name: spell(value) for name, value in vars(blocks).items() if name != "config"}
    if made.get("ropes"):  # in place of that of every layer
        del made["look"]["rope"]
    return shape, made


def spell(value: Any) -> Any:
    """Return a value such that equal ones are equal."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: spell(getattr(value, each.name)) for each in fields(value) if each.init}
    if isinstance(value, Mapping):
        return {name: spell(each) for name, each in value.items()}
    return [spell(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("kind", SERVED)
def test_setting_that_is_left_out_is_that_of_transformers(kind: str) -> None:
    wrong = []
    for key, lacking, explicit in list_lacking(kind):
        found = describe(lacking)
        is_refused = isinstance(found, str) and ("config.json has no " in found or f"'{key}'" in found)
        is_alone = (kind, key) == ALONE
        if not (is_refused or is_alone) and found != describe(explicit):
            wrong.append(key)
    assert not wrong
