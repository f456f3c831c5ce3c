"""The settings of a config.json, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallax_core.api import Unsupported

MOST = 2**40
"""No count in a configuration is larger,"""
MOST_LAYERS = 10_000
"""and this none of layers, each of which is described."""


class Settings:
    """Reads the settings of the text model: those under ``text_config`` where a model has more than text.

    Every reader raises `Unsupported`, naming the setting, when it is missing without a default or of the wrong kind. A
    setting that is null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config.get("text_config")
        self._config = text if isinstance(text, Mapping) else config

    def count(self, name: str, default: int | None = None, *, alias: str = "") -> int:
        """Return a whole number, at least 1; ``alias`` is another name some versions of transformers write."""
        value = self._read(alias if alias and not self.has(name) and self.has(alias) else name, default)
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        if type(value) is not int or not 1 <= value <= most:
            raise self._refuse(name, value, f"a whole number from 1 to {most}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number, at least 0."""
        value = self._read(name, default)
        if type(value) is not int or not 0 <= value <= MOST:
            raise self._refuse(name, value, "a whole number")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a yes or no."""
        value = self._read(name, default)
        if type(value) is not bool:
            raise self._refuse(name, value, "true or false")
        return value

    def words(self, name: str, allowed: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """Return one word for each layer, each one of ``allowed``."""
        values = self._read(name, list(default))
        if not isinstance(values, list) or any(value not in allowed for value in values):
            raise self._refuse(name, values, f"a list of {' and '.join(allowed)}")
        if len(values) != (num_layers := self.count("num_hidden_layers")):
            raise self._refuse(name, len(values), f"as long as there are layers ({num_layers})")
        return tuple(values)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers, possibly empty."""
        values = self._read(name, [])
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise self._refuse(name, values, "a list of whole numbers")
        return tuple(values)

    def has(self, name: str) -> bool:
        """Whether a setting is there."""
        return self._config.get(name) is not None

    def _read(self, name: str, default: object) -> object:
        value = self._config.get(name)
        if value is None:
            value = default
        if value is None:
            raise Unsupported(f"config.json has no {name!r}", "fetch the model again")
        return value

    @staticmethod
    def _refuse(name: str, value: object, wanted: str) -> Unsupported:
        return Unsupported(f"{name!r} in config.json is {value!r}, not {wanted}", "fetch the model again")
