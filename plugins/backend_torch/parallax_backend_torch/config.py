"""The settings of a config.json, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parallax_core.api import Unsupported

HINT = "fetch the model again, or choose another backend"
MOST = 2**40
GGUF = "gguf"
"""What config.json calls weights that are the blocks of a GGUF file."""
FULL, SLIDING = "full_attention", "sliding_attention"


class Config:
    """Reads the settings of the text model: those under ``text_config`` where a model has more than text.

    Every reader raises `Unsupported`, naming the setting, when it is missing without a default or of the wrong kind. A
    setting that is null counts as missing.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        text = config.get("text_config")
        self.raw: Mapping[str, Any] = text if isinstance(text, Mapping) else config
        names = config.get("architectures")
        self.architecture = str(names[0]) if isinstance(names, list) and names else ""
        """What config.json calls the model, such as ``LlamaForCausalLM``."""
        self.quantization: Mapping[str, Any] | None = config.get("quantization_config") or self.raw.get(
            "quantization_config"
        )

    def count(self, *names: str, default: int | None = None) -> int:
        """Return a whole number, at least 1, under the first of ``names`` that is there."""
        value = self._read(names, default)
        if type(value) is not int or not 1 <= value <= MOST:
            raise _refuse(names[0], value, "a whole number, at least 1")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """Return a whole number, at least 0."""
        value = self._read((name,), default)
        if type(value) is not int or not 0 <= value <= MOST:
            raise _refuse(name, value, "a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number."""
        value = self._read((name,), default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refuse(name, value, "a number")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a yes or no."""
        value = self._read((name,), default)
        if type(value) is not bool:
            raise _refuse(name, value, "true or false")
        return value

    def choose(self, allowed: Sequence[str], *names: str, default: str | None = None) -> str:
        """Return a word, which must be one of ``allowed``, under the first of ``names`` that is there."""
        value = self._read(names, default)
        if value not in allowed:
            raise _refuse(names[0], value, " or ".join(allowed))
        return str(value)

    def list_kinds(self, allowed: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
        """Return ``layer_types``: one word for each layer, each one of ``allowed``."""
        values = self._read(("layer_types",), list(default))
        if not isinstance(values, list) or any(value not in allowed for value in values):
            raise _refuse("layer_types", values, f"a list of {' and '.join(allowed)}")
        if len(values) != self.count("num_hidden_layers"):
            raise _refuse("layer_types", values, "as long as there are layers")
        return tuple(values)

    def list_numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers, possibly empty."""
        values = self._read((name,), [])
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            raise _refuse(name, values, "a list of whole numbers")
        return tuple(values)

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a table of settings, empty if there is none."""
        value = self._read((name,), {})
        if not isinstance(value, Mapping):
            raise _refuse(name, value, "a table")
        return value

    def list_forms(self) -> Mapping[str, str]:
        """Return the types of those tensors that are blocks of a GGUF file, by their names in the checkpoint."""
        found = self.quantization or {}
        forms = found.get("types") if found.get("quant_method") == GGUF else {}
        if not isinstance(forms, Mapping) or any(type(form) is not str for form in forms.values()):
            raise _refuse("types", forms, "a table of words")
        return forms

    def has(self, name: str) -> bool:
        """Whether a setting is there."""
        return self.raw.get(name) is not None

    def _read(self, names: Sequence[str], default: object) -> object:
        for name in names:
            if self.has(name):
                return self.raw[name]
        if default is None:
            raise Unsupported(f"config.json has no {names[0]!r}", HINT)
        return default


def _refuse(name: str, value: object, wanted: str) -> Unsupported:
    return Unsupported(f"{name!r} in config.json is {value!r}, not {wanted}", HINT)
