"""Reads and checks the settings of a config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallax_core.base.errors import Unsupported

MOST = 2**40
"""The largest number in a config.json."""
MOST_LAYERS = 10_000
"""The most layers of a model, since core describes each one."""
LAYER_COUNTS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
"""The names under which config.json may state the number of layers."""
LAYER_KINDS = ("layers_block_type", "hybrid_override_pattern")
"""Settings with a word or a letter for each layer, which a config.json may have instead."""
HINT = "fetch the model again"


def count_layers(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers a config.json states, by any of its names; None: it states none.

    Raises:
        Unsupported: if no model has that many.
    """
    inner = config.get("text_config")
    parts = (inner, config) if isinstance(inner, Mapping) else (config,)
    counts = [part.get(name) for part in parts for name in LAYER_COUNTS]
    kinds = (part.get(name) for part in parts for name in LAYER_KINDS)
    counts += [len(each) for each in kinds if each and isinstance(each, list | str)]
    count = next((count for count in counts if type(count) is int), None)
    if count is not None and not 1 <= count <= MOST_LAYERS:
        raise Unsupported(f"config.json states that the model has {count} layers", HINT)
    return count


class ConfigReader:
    """Reads the settings of the text model: those under ``text_config``, with what is tied by the model around it.

    Every method raises `Unsupported`, naming the setting, if it is missing without a default or of the wrong kind. A
    setting that is null counts as missing.

    Args:
        config: the contents of config.json.
        hint: the next step for a user whose model has a wrong setting.
    """

    def __init__(self, config: Mapping[str, Any], hint: str = HINT) -> None:
        text, tied = config.get("text_config"), config.get("tie_word_embeddings")
        around = {} if tied is None else {"tie_word_embeddings": tied}
        self.raw: Mapping[str, Any] = {**text, **around} if isinstance(text, Mapping) else config
        """The settings as they are."""
        self._hint = hint

    def count(self, *names: str, default: int | None = None) -> int:
        """Return an integer of at least 1, under the first of ``names`` that is set."""
        value = self._read(names, default)
        most = MOST_LAYERS if names[0] in LAYER_COUNTS else MOST
        if type(value) is not int or not 1 <= value <= most:
            raise self._refuse(names[0], value, f"a whole number from 1 to {most}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return an integer of at least 0."""
        value = self._read((name,), default)
        if type(value) is not int or not 0 <= value <= MOST:
            raise self._refuse(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number."""
        value = self._read((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -MOST <= value <= MOST:
            raise self._refuse(name, value, "a number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._read((name,), default)
        if type(value) is not bool:
            raise self._refuse(name, value, "true or false")
        return value

    def choose(self, allowed: Sequence[str], *names: str, default: str | None = None) -> str:
        """Return a word, which must be one of ``allowed``, under the first of ``names`` that is set."""
        value = self._read(names, default)
        if value not in allowed:
            raise self._refuse(names[0], value, " or ".join(allowed))
        return str(value)

    def list_words(self, name: str, allowed: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """Return one word for each layer, each one of ``allowed``."""
        values = self._read((name,), list(default))
        if not isinstance(values, list) or any(value not in allowed for value in values):
            raise self._refuse(name, values, f"a list of {' and '.join(allowed)}")
        if len(values) != (num_layers := self.count("num_hidden_layers")):
            raise self._refuse(name, len(values), f"as long as there are layers ({num_layers})")
        return tuple(values)

    def list_numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of integers, possibly empty."""
        values = self._read((name,), [])
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise self._refuse(name, values, "a list of whole numbers")
        return tuple(values)

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of settings; empty if missing."""
        value = self._read((name,), {})
        if not isinstance(value, Mapping):
            raise self._refuse(name, value, "a table")
        return value

    def has(self, name: str) -> bool:
        """Return whether a setting is set."""
        return self.raw.get(name) is not None

    def _read(self, names: Sequence[str], default: object) -> object:
        for name in names:
            if self.has(name):
                return self.raw[name]
        if default is None:
            family = self.raw.get("model_type")
            message = f"config.json has no {names[0]!r}{f', which a model of type {family} needs' if family else ''}"
            raise Unsupported(message, self._hint)
        return default

    def _refuse(self, name: str, value: object, wanted: str) -> Unsupported:
        message = f"{name!r} in config.json is {value!r}, not {wanted}"
        return Unsupported(message, self._hint)
