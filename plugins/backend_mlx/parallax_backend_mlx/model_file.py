"""Finds the model file of mlx-lm that builds an architecture."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from parallax_backend_mlx.runtime import MODEL_ARCHITECTURE_REMAPPING, MODEL_REMAPPING
from parallax_backend_mlx.weight_names import spell_weights
from parallax_core.api import Unsupported

TEXT_PARTS = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe", "step3p7": "step3p5"}
"""Models whose file in mlx-lm has another name: of the model that they are the text part of, or that is their text."""
CRASHING = frozenset({"phi3small"})
"""Model files of mlx-lm that crash the process when they run, so that no error could be reported."""


def find_classes(config: Mapping[str, Any], adapter_file: object = None) -> tuple[type, type]:
    """Return the classes ``Model`` and ``ModelArgs`` for ``config``.

    An import that fails inside a model file is raised unchanged: the installation is broken.

    Args:
        config: the model's config.json.
        adapter_file: a model file in the form of mlx-lm's, if the model's adapter has one; it replaces mlx-lm's.

    Raises:
        Unsupported: if mlx-lm has no model file for it, or the model requires code from its folder.
    """
    module: Any = adapter_file or _import_module(_name_module(config))
    return spell_weights(module.Model), module.ModelArgs


def list_fields(config: Mapping[str, Any], adapter_file: object = None) -> frozenset[str]:
    """Return the settings that the model file for ``config``, or that of its text part, reads from config.json.

    Args:
        config: the model's config.json.
        adapter_file: as for `find_classes`.

    Raises:
        Unsupported: as `find_classes`.
    """
    fields = _list_settings(adapter_file or _import_module(_name_module(config)))
    text = config.get("text_config")
    name = _name_text(text) if isinstance(text, Mapping) else ""
    return fields | _list_settings(_import_module(name)) if _is_known(name) else fields


def _name_text(text: Mapping[str, Any]) -> str:
    kind = str(text.get("model_type"))
    return TEXT_PARTS.get(kind, kind)


def _name_module(config: Mapping[str, Any]) -> str:
    """Return the name of the model file, found by the rules of ``mlx_lm.utils``."""
    if config.get("model_file"):
        message = f"this model requires code from its folder, which is not run: {config['model_file']}"
        raise Unsupported(message, "choose a model of an architecture that mlx-lm has")
    kind = str(config.get("model_type"))
    named = config.get("architectures") or ()
    named = (named,) if isinstance(named, str) else named
    pairs = [(kind, name) for name in named]
    special = [MODEL_ARCHITECTURE_REMAPPING[pair] for pair in pairs if pair in MODEL_ARCHITECTURE_REMAPPING]
    name = str(special[0] if special else MODEL_REMAPPING.get(kind, TEXT_PARTS.get(kind, kind)))
    if not _is_known(name):
        message = f"mlx-lm has no architecture called {kind!r}"
        raise Unsupported(message, "update mlx-lm, or try another backend")
    if name in CRASHING:
        message = f"mlx-lm crashes on models of architecture {name!r}"
        raise Unsupported(message, "try another backend")
    return name


def _is_known(name: str) -> bool:
    return re.fullmatch(r"[\w-]+", name) is not None and find_spec(f"mlx_lm.models.{name}") is not None


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"mlx_lm.models.{name}")
    except SystemExit as error:  # a model file may end the program where a library is missing
        raise Unsupported(f"mlx-lm's model file {name!r} needs what is not installed", "try another backend") from error


def _list_settings(module: object) -> frozenset[str]:
    """Return the settings of every class in ``module``, and in the model files it imports, that reads a config."""
    values = list(vars(module).values())
    for part in values.copy():
        if isinstance(part, ModuleType) and part.__name__.startswith("mlx_lm.models."):
            values += vars(part).values()
    for base in vars(module)["Model"].__mro__ if isinstance(module, ModuleType) else ():
        if base.__module__.startswith("mlx_lm.models."):
            values += vars(importlib.import_module(base.__module__)).values()
    readers = [value for value in values if isinstance(value, type) and hasattr(value, "from_dict")]
    return frozenset(name for reader in readers for name in inspect.signature(reader).parameters)
