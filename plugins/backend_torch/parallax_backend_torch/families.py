"""Finds the file of ``blocks`` that builds a model."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from parallax_backend_torch.architectures import BLOCKS
from parallax_backend_torch.config import Config
from parallax_backend_torch.model import Model


def find_model(config: Config, brought: object) -> Model | None:
    """Return the model that ``config`` describes, or None if there are no blocks for it.

    Args:
        config: the settings of the model.
        brought: the blocks of the model's adapter for this backend, if any; they replace this backend's.

    Raises:
        Unsupported: if it has a setting that this backend's family does not support.
    """
    if brought is not None:
        return cast("Callable[[Config], Model]", brought)(config)
    if config.architecture not in BLOCKS:
        return None
    module, _, name = BLOCKS[config.architecture].partition(":")
    found = getattr(import_module(f"parallax_backend_torch.blocks.{module}"), name)
    return cast("Callable[[Config], Model]", found)(config)
