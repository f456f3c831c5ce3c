"""Stand-ins for packages without a CPU build that SGLang imports and, on a CPU, does not use.

Python imports this module at start-up when its folder is on ``PYTHONPATH``. The backend puts it there for its child
process, and so for the processes that SGLang starts, on machines without CUDA only. Everything can be imported from a
stand-in, and nothing computes: a call raises NotImplementedError. A package that is installed is used instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NoReturn

PACKAGES = frozenset({"sgl_kernel", "torchaudio", "torchvision"})
IMPORT = "_find_and_load_unlocked"
"""The function of importlib from which an import statement looks for a module; `importlib.util.find_spec` does not."""


class Missing:
    """Anything in a package that is not installed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._path}.{name}")

    def __call__(self, *_: object, **__: object) -> NoReturn:  # noqa: D102
        raise NotImplementedError(f"{self._path} has no CPU build")


class MissingClass(type):
    """A class in a package that is not installed, from which another one can be derived."""

    def __getattr__(cls, name: str) -> Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{cls.__name__}.{name}")


class StandIn(ModuleType):
    """A module from which any name can be imported; a capitalized one is a class, so that it can be a base class."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        found = MissingClass(name, (), {}) if name[0].isupper() else Missing(f"{self.__name__}.{name}")
        setattr(self, name, found)
        return found


class StandInFinder(MetaPathFinder, Loader):
    """Gives stand-ins to import statements only.

    A library that asks whether a package is installed, by `importlib.util.find_spec`, is told that it is not.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for one of `PACKAGES` or a module in it, if an import statement looks for it."""
        del path, target
        caller = sys._getframe(2).f_code.co_name  # noqa: SLF001 -- frame 1 is importlib, which called this
        if fullname.partition(".")[0] not in PACKAGES or caller != IMPORT:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in, older than any release for a library that asks for its version once it is imported."""
        found = StandIn(spec.name)
        found.__dict__["__version__"] = "0.0.0"
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


sys.meta_path.append(StandInFinder())
