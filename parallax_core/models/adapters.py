"""Finds the adapter of a model by its architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallax_core.base.errors import ParallaxError, PluginConflict, Unsupported
from parallax_core.contracts.model import ModelAdapter, ModelShape, ModelSpec
from parallax_core.plugins.discovery import DISABLED_VARIABLE
from parallax_core.plugins.host import PluginHost
from parallax_core.plugins.registry import Offer


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """An adapter and the name under which its plugin offers it."""

    name: str
    adapter: ModelAdapter


def find_family(host: PluginHost, config: Mapping[str, Any]) -> ModelFamily | None:
    """Return the family of the model that ``config``, a config.json, describes; None if no plugin knows it.

    Raises:
        PluginConflict: if several plugins claim its architecture.
        BrokenPlugin: if the adapter cannot be loaded.
        ParallaxError: if the config's ``architectures`` is not a list of names.
    """
    offer = _find_offer(host, config)
    family = ModelFamily(offer.spec.name, offer.load(offer.spec.adapter)) if offer else None
    return None if family and offer and "*" in offer.spec.architectures and not _read(family, config) else family


def find_blocks(host: PluginHost, config: Mapping[str, Any], backend: str) -> object:
    """Return the blocks of a model's family for a backend; None: the backend builds the layers itself.

    Raises:
        PluginConflict: if several plugins claim its architecture.
        BrokenPlugin: if the blocks cannot be loaded.
    """
    offer = _find_offer(host, config)
    return offer.load(offer.spec.blocks[backend]) if offer and backend in offer.spec.blocks else None


def find_shape(host: PluginHost, config: Mapping[str, Any]) -> ModelShape | None:
    """Return the shape of a model; None if no adapter knows it, or its adapter refuses one of its settings.

    Raises:
        PluginConflict: if several plugins claim its architecture.
        BrokenPlugin: if the adapter cannot be loaded.
    """
    return _read(family, config) if (family := find_family(host, config)) else None


def _read(family: ModelFamily, config: Mapping[str, Any]) -> ModelShape | None:
    try:
        return family.adapter.read_shape(config)
    except Unsupported:
        return None  # a backend may run it all the same, on layers of its own


def find_spec(host: PluginHost, config: Mapping[str, Any]) -> ModelSpec | None:
    """Return the spec of a model's family, without its adapter; None if no plugin knows it.

    Raises:
        PluginConflict: if several plugins claim its architecture.
    """
    offer = _find_offer(host, config)
    return offer.spec if offer else None


def _find_offer(host: PluginHost, config: Mapping[str, Any]) -> Offer[ModelSpec] | None:
    named, known = _read_names(config.get("architectures") or ()), host.models().offers
    offers = [offer for offer in known if {*offer.spec.architectures}.intersection(named)]
    offers = offers or [offer for offer in known if "*" in offer.spec.architectures]
    if len(offers) > 1:
        origins = " and ".join(offer.plugin.origin for offer in offers)
        hint = f"choose one, with {DISABLED_VARIABLE}={offers[-1].plugin.distribution}"
        raise PluginConflict(f"{' and '.join(named)} is claimed by both {origins}", hint)
    return offers[0] if offers else None


def _read_names(value: object) -> Sequence[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        message = f"'architectures' in config.json is {value!r}, not a list of names"
        raise ParallaxError(message, "fetch the model again")
    return names


def count_weights(shape: ModelShape) -> int:
    """Return the number of parameters of a model."""
    return shape.before_weights + shape.after_weights + sum(layer.weights for layer in shape.layers)


def count_active(shape: ModelShape) -> int:
    """Return the number of parameters used for a token, without the embedding, which is only looked up."""
    head = shape.before_weights if shape.is_tied else 0
    return head + shape.after_weights + sum(layer.active_weights for layer in shape.layers)
