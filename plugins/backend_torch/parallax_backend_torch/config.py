"""The settings of a config.json, checked as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallax_core.api import ConfigReader, Unsupported

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
        self.quantization: Mapping[str, Any] | None = config.get("quantization_config") or self.raw.get(
            "quantization_config"
        )

    def fill(self, **defaults: object) -> Config:
        """Return these settings, with defaults of a family for those that are missing."""
        return Config({**defaults, **{name: value for name, value in self.raw.items() if value is not None}})

    def list_forms(self) -> Mapping[str, str]:
        """Return the types of the tensors that are blocks of a GGUF file, by their names in the checkpoint."""
        found = self.quantization or {}
        forms = found.get("types") if found.get("quant_method") == GGUF else {}
        if not isinstance(forms, Mapping) or any(type(form) is not str for form in forms.values()):
            raise Unsupported(f"'types' in config.json is {forms!r}, not a table of strings", HINT)
        return forms
