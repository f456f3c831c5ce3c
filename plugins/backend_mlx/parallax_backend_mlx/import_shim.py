"""The way into mlx_lm past its command line.

``import mlx_lm`` brings its generator and its tokenizers, and with them transformers and, where it is installed, torch.
That costs each process that serves layers one to three seconds, and it has no use for any of them.
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


class Package(ModuleType):
    """A package whose modules can be imported; itself it is loaded once something else is looked for in it."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the package holds
        """Load the package, and look again."""
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # what is loaded needs no loading
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


@contextmanager
def skip_tokenizers() -> Iterator[None]:
    """Have modules of mlx_lm imported without its tokenizers; who uses those afterwards, loads them.

    Whoever has imported the package before keeps all of it.
    """
    spec = find_spec(PACKAGE) if PACKAGE not in sys.modules else None
    if spec is None:
        yield
        return
    sys.modules[PACKAGE] = module_from_spec(spec)
    sys.modules[PACKAGE].__class__ = Package
    # `mlx_lm.utils` takes these two by name: one to call, and one for its annotations.
    sys.modules[TOKENIZERS] = ModuleType(TOKENIZERS)
    vars(sys.modules[TOKENIZERS]).update(load=_load_tokenizer, TokenizerWrapper=object)
    try:
        yield
    finally:
        del sys.modules[TOKENIZERS]


def _load_tokenizer(*args: object, **options: object) -> object:
    return import_module(TOKENIZERS).load(*args, **options)
