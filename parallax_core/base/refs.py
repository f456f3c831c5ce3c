"""References to objects that are imported on use."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

T = TypeVar("T")


@dataclass(frozen=True)  # no slots: a subscripted generic, Ref[int]("m:x"), sets an attribute of its own
class Ref(Generic[T]):
    """A lazy reference, ``Ref("package.module:Name")``.

    The type parameter says what ``load`` returns; nothing checks it at run time.

    Raises:
        ValueError: if ``target`` is not of the form ``module:name``.
    """

    target: str

    def __post_init__(self) -> None:
        module, _, name = self.target.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), name)):
            message = f"a Ref is written 'package.module:Name', not {self.target!r}"
            raise ValueError(message)

    def load(self) -> T:
        """Import the module and return the object. Errors of the import are not caught."""
        module, _, name = self.target.partition(":")
        return cast("T", getattr(importlib.import_module(module), name))
