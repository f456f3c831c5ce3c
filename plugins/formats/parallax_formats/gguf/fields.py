"""Reads the values of a GGUF file by key and type."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from parallax_formats.gguf.file import Value, damaged


class Fields:
    """Typed access to a GGUF file's values.

    Every method raises `ParallaxError` naming the key if it is missing (and no default is given) or of another type.
    """

    def __init__(self, metadata: Mapping[str, Value]) -> None:
        self._metadata = metadata

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``."""
        return [key for key in self._metadata if key.startswith(prefix)]

    def value(self, key: str) -> Value:
        """Return a value of any type."""
        return self._find(key, None)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer."""
        value = self._find(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise damaged(f"{key!r} is {_show(value)}, not an integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer of at least one."""
        value = self.integer(key, default)
        if value < 1:
            raise damaged(f"{key!r} is {value}, not a positive number")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a positive float: the shortest decimal that rounds to the stored float32."""
        value = self._find(key, default)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise damaged(f"{key!r} is {_show(value)}, not a positive number")
        return float(str(np.float32(value)))

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number: an integer as stored, a float as the shortest decimal that rounds to its float32."""
        value = self._find(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise damaged(f"{key!r} is {_show(value)}, not a number")
        return value if isinstance(value, int) else float(str(np.float32(value)))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._find(key, default)
        if not isinstance(value, str):
            raise damaged(f"{key!r} is {_show(value)}, not a string")
        return value

    def flag(self, key: str) -> bool:
        """Return a bool; False if the key is missing."""
        value = self._find(key, default=False)
        if not isinstance(value, bool):
            raise damaged(f"{key!r} is {_show(value)}, not true or false")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of strings."""
        value = self._find(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise damaged(f"{key!r} is not a list of strings")
        return [str(item) for item in value]

    def integers(self, key: str) -> list[int]:
        """Return a list of integers."""
        value = self._find(key, None)
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise damaged(f"{key!r} is not a list of integers")
        return [int(item) for item in value]

    def numbers(self, key: str) -> list[float]:
        """Return a list of finite numbers."""
        value = self._find(key, None)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and math.isfinite(item) for item in value
        ):
            raise damaged(f"{key!r} is not a list of numbers")
        return [float(item) for item in value]

    def _find(self, key: str, default: Value | None) -> Value:
        value = self._metadata.get(key, default)
        if value is None:
            raise damaged(f"it has no {key!r}")
        return value


def _show(value: Value) -> str:
    return "a list" if isinstance(value, list) else repr(value)[:60]
