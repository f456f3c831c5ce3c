"""Reads how a model's embeddings are made, from the configuration of sentence-transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallax_core.base.errors import InvalidRequest, ParallaxError
from parallax_core.base.files import read_object
from parallax_core.checkpoint.folder_layout import POOLING
from parallax_core.contracts.engine import Pooling

MODULES = "modules.json"
"""The list of a model's modules."""
MODES: dict[str, Pooling] = {"lasttoken": "last", "mean_tokens": "mean", "mean": "mean"}
"""The supported modes of pooling, by their names in the configuration."""
OTHER_MODEL = "serve a model made for embeddings that takes the last token or the mean"


@dataclass(frozen=True, slots=True)
class EmbeddingConfig:
    """How hidden states become an embedding."""

    pooling: Pooling
    normalizes: bool
    """Whether embeddings have the length 1."""
    dimensions: tuple[int, ...] | None
    """The numbers of leading elements that are embeddings by themselves; empty: any number; None: no other than all."""


def read_embedding_config(folder: Path) -> EmbeddingConfig:
    """Return the embedding configuration of the model in ``folder``.

    Raises:
        InvalidRequest: if it has none, or one that is not supported.
        ParallaxError: if a file is damaged.
    """
    if not (folder / MODULES).exists() and not (folder / POOLING).exists():
        message = f"this model makes no embeddings: it has no {MODULES} and no {POOLING}"
        raise InvalidRequest(message, "model", OTHER_MODEL)
    place, normalizes = _read_modules(folder) if (folder / MODULES).exists() else (folder / POOLING, False)
    pooling, config = _read_pooling(place), read_object(folder / "config.json")
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        message = "embeddings of this model are not supported: its tokens attend to later ones"
        raise InvalidRequest(message, "model", OTHER_MODEL)
    return EmbeddingConfig(pooling, normalizes, _read_dimensions(config))


def _read_modules(folder: Path) -> tuple[Path, bool]:
    """Return the file with the configuration of the pooling, and whether embeddings are normalized."""
    try:
        modules = json.loads((folder / MODULES).read_bytes())
        found = [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, LookupError, TypeError) as error:
        message = f"{folder / MODULES} is not a list of modules: {error}"
        raise ParallaxError(message, "the file is damaged: download or copy it again") from error
    kinds = [kind for kind, _ in found]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        message = f"embeddings of this model are not supported: it has the modules {', '.join(kinds)}"
        raise InvalidRequest(message, "model", OTHER_MODEL)
    place = (folder / found[1][1] / "config.json").resolve()
    if folder.resolve() not in place.parents:
        raise ParallaxError(f"{folder / MODULES} names a file outside of the model's folder: {found[1][1]}")
    return place, len(kinds) > 2  # noqa: PLR2004 -- with the third module


def _read_pooling(file: Path) -> Pooling:
    """Return the mode that the configuration of the pooling names."""
    try:
        config = read_object(file)
    except FileNotFoundError as error:
        raise ParallaxError(f"{file} is missing", "download or copy it") from error
    flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    modes = [flag.removeprefix("pooling_mode_") for flag in flags]
    if isinstance(config.get("pooling_mode"), str):  # newer releases of sentence-transformers
        modes = [config["pooling_mode"]]
    if len(modes) != 1 or modes[0] not in MODES:
        shown = ", ".join(modes) or "none"
        raise InvalidRequest(f"the pooling of this model is not supported: {shown}", "model", OTHER_MODEL)
    return MODES[modes[0]]


def _read_dimensions(config: dict[str, Any]) -> tuple[int, ...] | None:
    """Return `EmbeddingConfig.dimensions`, as config.json states it for vLLM."""
    stated = config.get("matryoshka_dimensions")
    if isinstance(stated, list) and stated and all(isinstance(each, int) for each in stated):
        return tuple(stated)
    return () if config.get("is_matryoshka") is True else None
