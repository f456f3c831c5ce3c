"""The settings of a config.json, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.api import ConfigReader, Unsupported
from parallax_formats import find_settings, name_method

HINT = "fetch the model again, or choose another backend"
GGUF = "gguf"
"""The quantisation method in config.json of weights in the blocks of a GGUF file."""
FULL, SLIDING = "full_attention", "sliding_attention"


class Config(ConfigReader):
    """The settings of a model, with those that only this backend reads."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config, HINT)
        names = config.get("architectures")
        self.architecture = str(names[0]) if isinstance(names, list) and names else ""
        """The architecture in config.json, such as ``LlamaForCausalLM``."""
        self.method = name_method(config)
        """How its weights are quantised, such as ``awq``; empty: not."""
        self._quantization = find_settings(config)

    def fill(self, **defaults: object) -> Config:
        """Return these settings, with defaults of a family for those that are missing."""
        return Config({**defaults, **{name: value for name, value in self.raw.items() if value is not None}})

    def list_forms(self) -> Mapping[str, str]:
        """Return the types of the tensors that are blocks of a GGUF file, by their names in the checkpoint."""
        forms = self._quantization.get("types") if self.method == GGUF else {}
        if not isinstance(forms, Mapping) or any(type(form) is not str for form in forms.values()):
            raise Unsupported(f"'types' in config.json is {forms!r}, not a table of strings", HINT)
        return forms
