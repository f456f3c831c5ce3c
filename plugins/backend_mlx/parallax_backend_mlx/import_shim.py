"""Imports modules of mlx_lm without its generator, its tokenizers and the hub's client.

``import mlx_lm`` imports them, and with them transformers and, if installed, torch. That takes one to four seconds in
each process that serves layers, which uses none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

PACKAGE = "mlx_lm"
TOKENIZERS = f"{PACKAGE}.tokenizer_utils"
HUB, DOWNLOAD = "huggingface_hub", "snapshot_download"


class Package(ModuleType):
    """A package whose modules can be imported; the package itself is loaded on the first other attribute."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the package holds
        """Load the package, and return its attribute."""
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # loaded: no further hook is needed
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


@contextmanager
def skip_unused() -> Iterator[None]:
    """Import modules of mlx_lm without those that serve no layers; these load on first use.

    Does nothing if the package was imported before.
    """
    spec = find_spec(PACKAGE) if PACKAGE not in sys.modules else None
    if spec is None:
        yield
        return
    sys.modules[PACKAGE] = module_from_spec(spec)
    sys.modules[PACKAGE].__class__ = Package
    # `mlx_lm.utils` imports these two names: one to call, and one for its annotations.
    sys.modules[TOKENIZERS] = ModuleType(TOKENIZERS)
    vars(sys.modules[TOKENIZERS]).update(load=_load_tokenizer, TokenizerWrapper=object)
    try:
        with _skip_hub():
            yield
    finally:
        del sys.modules[TOKENIZERS]


@contextmanager
def _skip_hub() -> Iterator[None]:
    """Let `mlx_lm.utils` import a function of the hub that loads the real one when it is called."""
    names = vars(import_module(HUB))
    is_loaded = DOWNLOAD in names
    names.setdefault(DOWNLOAD, _download)
    try:
        yield
    finally:
        if not is_loaded:
            del names[DOWNLOAD]


def _download(*args: object, **options: object) -> object:
    return getattr(import_module(HUB), DOWNLOAD)(*args, **options)


def _load_tokenizer(*args: object, **options: object) -> object:
    return import_module(TOKENIZERS).load(*args, **options)
