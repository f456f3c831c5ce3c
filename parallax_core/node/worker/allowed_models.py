"""Decides which models a head may have this node load."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from parallax_core.base.errors import ParallaxError
from parallax_core.config.home import models_folder
from parallax_core.models.catalog import Catalog

ANYTHING = "*"
PATHS = ("/", "~", ".")
"""The beginnings of a path on this machine."""


class AllowedModels:
    """Decides which models may be loaded.

    By default: models that sources fetch by name, and the folder where sources keep them. A head can neither read any
    other folder of the worker's machine nor find out whether it exists.
    """

    def __init__(self, catalog: Catalog, allowed: Sequence[str] = ()) -> None:
        """Allow models that match an entry of ``allowed``: a pattern of names, a folder, or ``*`` for all."""
        self._catalog = catalog
        self._allows_all = ANYTHING in allowed
        self._patterns = [each for each in allowed if not each.startswith(PATHS)] if allowed else [ANYTHING]
        self._folders = [_resolve(each) for each in allowed if each.startswith(PATHS)]
        if not allowed:
            self._folders = [models_folder().resolve()]

    def check(self, model: str) -> None:
        """Check that ``model``, as a head writes it, may be loaded.

        Raises:
            ParallaxError: if it may not be loaded, or does not name a model.
        """
        found = self._catalog.locate(model)
        if self._catalog.takes_paths(found) or found.name.startswith(PATHS):
            path = _resolve(found.name)
            is_allowed = self._allows_all or any(path.is_relative_to(folder) for folder in self._folders)
        else:
            bare = [found.name] if found.source == "hf" else []  # a hub id may be written with its source or without
            names = (model, f"{found.source}:{found.name}", *bare)
            is_allowed = any(fnmatchcase(name, each) for name in names for each in self._patterns)
        if not is_allowed:
            message = f"this node does not allow servers to load {model!r}"
            raise ParallaxError(message, f"allow it when you start the worker: --allow-model {model}")


def _resolve(path: str) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        message = f"{path!r} is not a usable path: {error}"
        raise ParallaxError(message, "give the path of a folder") from error
