"""Reads which variants a model has: by hand, from files, and from the list that is shipped."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from parallax_cluster.config.run import RunSettings
from parallax_cluster.model_variants import ModelVariants, Variant
from parallax_core.api import LayerRange, ModelFolder, StagePlan, UsageError, identify_weights
from parallax_core.api.deployment import Catalog

SHIPPED = Path(__file__).with_name("variants.json")
CATALOGUE = "catalogue"
SUFFIXES = (".json", ".toml")
HINT = "docs/how-to/variants.md shows a file of variants"
ALL_LAYERS = LayerRange(0, 2**31)
Words = Annotated[str, Meta(min_length=1, max_length=200)]


class ListedVariant(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The files of a model for the nodes of one backend."""

    model: Words
    """What these nodes load, such as ``org/name-4bit``."""
    weights: Annotated[dict[Words, Words], Meta(max_length=2**17)] = {}
    """Known digests of its parts, which nodes' copies must have."""


class VariantList(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Models with their variants by backend."""

    models: dict[Words, dict[Words, ListedVariant]]
    date: str = ""
    """When it was made."""


def read_variants(settings: RunSettings, catalog: Catalog) -> ModelVariants | None:
    """Return the variants of the model that is named, or None if none are asked for.

    Raises:
        UsageError: if settings contradict each other, or a file cannot be read or has no variants of the model.
    """
    given = settings.variant or ((CATALOGUE,) if settings.mix_weights else ())
    if settings.mix_answers and not settings.mix_weights:
        raise UsageError("--set run.mix_answers needs --mix-weights", "without it, answers have one form of weights")
    found: dict[str, Variant] = {}
    for text in given:
        found |= _read(text, settings.model)
    if not found:
        return None
    return ModelVariants(
        model=settings.model,
        by_backend=found,
        are_mixed=settings.mix_weights,
        goes_on=settings.mix_answers,
        read=partial(_read_weights, catalog),
    )


def _read_weights(catalog: Catalog, variant: Variant) -> dict[str, str]:
    """Return the digests of a variant: of this machine's copy, if it has one, and known ones.

    Raises:
        ParallaxError: if a file is damaged, or no source has models of that form.
        OSError: if a file cannot be read.
    """
    path = Path(variant.model).expanduser()
    folder = ModelFolder(ref=variant.model, path=path) if path.is_dir() else catalog.find(variant.model)
    if folder is None:
        return dict(variant.weights)
    plan = StagePlan(model=folder.path, listed_weights=folder.listed_weights)
    return {**identify_weights(plan, ALL_LAYERS, ALL_LAYERS.stop).parts, **variant.weights}


def _read(text: str, model: str) -> Mapping[str, Variant]:
    backend, equals, named = text.partition("=")
    if text == CATALOGUE or (text.endswith(SUFFIXES) and not equals):
        path = SHIPPED if text == CATALOGUE else Path(text).expanduser()
        listed = read_list(path).models.get(model.removeprefix("hf:"))
        if listed is None:
            what = "the catalogue" if text == CATALOGUE else str(path)
            raise UsageError(f"{what} has no variants of {model}", "name them by hand: --variant BACKEND=MODEL")
        return {name: Variant(each.model, each.weights) for name, each in listed.items()}
    if not (backend and equals and named):
        message = f"--variant {text!r} is neither BACKEND=MODEL, nor a file of variants, nor {CATALOGUE!r}"
        raise UsageError(message, "such as mlx=org/name-4bit")
    return {backend: Variant(named)}


def read_list(path: Path) -> VariantList:
    """Return a file of variants, in JSON or TOML.

    Raises:
        UsageError: if it cannot be read, or a field is missing, unknown or of a wrong type.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        return msgspec.convert(content, VariantList)
    except (OSError, ValueError) as error:  # msgspec's and both parsers' errors are ValueErrors, too
        raise UsageError(f"{path} is not a file of variants: {error}", HINT) from error
