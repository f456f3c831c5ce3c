"""The models that `parallax models suggest` chooses from: a dated list, and files that add to it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parallax_cluster.cli.plan_inputs import read_nodes
from parallax_cluster.placement.guessed_shape import guess_shape, read_count
from parallax_cluster.placement.nodes_file import name_field
from parallax_core.api import ModelShape, UsageError
from parallax_core.api.cli import PluginHost
from parallax_core.api.deployment import find_family

SHIPPED = Path(__file__).with_name("models.json")
HINT = "docs/how-to/models.md shows a list of models"
Words = Annotated[str, Meta(min_length=1, max_length=200)]


class ModelForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The files of a model in one format."""

    format: Words
    """As its authors call it, such as ``Q4_K_M``."""
    model: Words
    """What to serve, such as ``org/name-GGUF:Q4_K_M``."""
    bits: Annotated[float, Meta(ge=0.5, le=64)]
    """Bits per weight, with scales, on average over the model."""


class ListedModel(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A model, by its config.json or by its sizes alone."""

    name: Words
    forms: list[ModelForm] = []
    """Empty: it is not suggested."""
    config: dict[str, Any] = {}
    params: str = ""
    """The number of parameters, such as ``24B``, where ``config`` is not given."""
    layers: Annotated[int, Meta(ge=0, le=10_000)] = 0
    active: str = ""
    """The parameters that a token meets, if they are not all."""
    source: str = ""
    """Where ``config`` is from."""


class ModelList(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A list of models."""

    models: Annotated[list[ListedModel], Meta(min_length=1)]
    date: str = ""
    """When it was made."""


def read_list(paths: Iterable[Path]) -> ModelList:
    """Return the list that is shipped, with the models of further files; those of the same name replace others.

    Raises:
        UsageError: if a file cannot be read, or a field is missing, unknown or of a wrong type or value.
    """
    shipped = msgspec.json.decode(SHIPPED.read_bytes(), type=ModelList)
    found = {model.name: model for model in shipped.models}
    for path in paths:
        try:
            added = msgspec.convert(read_nodes(path, "models"), ModelList)
        except msgspec.ValidationError as error:
            raise UsageError(f"{path}: {name_field(str(error))}", HINT) from error
        found |= {model.name: model for model in added.models}
    return ModelList(models=[*found.values()], date=shipped.date)


def read_shape(host: PluginHost, model: ListedModel) -> ModelShape:
    """Return the shape of a model.

    Raises:
        UsageError: if neither its config.json nor its sizes are given.
        Unsupported: if its config.json is wrong, or no installed plugin knows its architecture.
    """
    if not model.config and not (model.params and model.layers):
        raise UsageError(f"the model {model.name!r} has neither a config nor params and layers", HINT)
    if not model.config:
        active = read_count(model.active, "active") if model.active else None
        return guess_shape(read_count(model.params, "params"), model.layers, active)
    family = find_family(host, model.config)
    if family is None:
        named = ", ".join(map(str, model.config.get("architectures") or ["none"]))
        raise UsageError(f"no installed plugin knows the architecture of {model.name!r} ({named})", HINT)
    return family.adapter.read_shape(model.config)
