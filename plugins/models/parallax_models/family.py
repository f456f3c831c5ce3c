"""Base of the adapters of model families."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parallax_core.api import ConfigReader, LayerShape, ModelShape, Part, Unsupported
from parallax_models.defaults import fill
from parallax_models.weights import Heads

PREFIX = r"(?:model\.|backbone\.)?(?:language_model\.)?"
LAYER = re.compile(PREFIX + r"(?:model\.)?layers\.(\d+)\.")
BEFORE = re.compile(PREFIX + r"(?:model\.)?(?:embed_tokens|embeddings)\.")
AFTER = re.compile(PREFIX + r"(?:(?:model\.)?(?:norm|norm_f|embedding_norm|final_layernorm)\.|lm_head\.)")


@dataclass(frozen=True, slots=True)
class Family:
    """A `ModelAdapter` for decoders of the usual structure: an embedding, layers, a norm, a head."""

    read_layers: Callable[[ConfigReader], Iterable[LayerShape]]
    """Returns the layers in order."""
    is_tied: bool = False
    """Whether the head is tied to the embedding if config.json does not say."""
    unify: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Returns the settings of the text model under the names, and in the forms, that ``read_layers`` reads."""
    turns_part: bool = False
    """Whether rope turns the share of a head that config.json says; the code of most families turns all of it."""

    def read_shape(self, config: Mapping[str, Any]) -> ModelShape:
        """Read the shape of a model; see `parallax_core.api.ModelAdapter`."""
        settings = self.read_settings(config)
        heads = Heads.read(settings)
        vocab, is_tied = settings.count("vocab_size"), settings.flag("tie_word_embeddings", default=self.is_tied)
        return ModelShape(
            hidden_size=heads.hidden,
            vocab_size=vocab,
            context_length=settings.count("max_position_embeddings"),
            num_heads=heads.queries // heads.width,
            num_kv_heads=heads.values // heads.width,
            head_dim=heads.width,
            layers=tuple(self.read_layers(settings)),
            before_weights=vocab * heads.hidden,
            after_weights=heads.hidden + (0 if is_tied else vocab * heads.hidden),
            is_tied=is_tied,
        )

    def read_settings(self, config: Mapping[str, Any]) -> ConfigReader:
        """Return the settings of a config.json under the names that ``read_layers`` reads, with their defaults."""
        return ConfigReader(fill(self.unify(ConfigReader(config).raw)))

    def list_windows(self, settings: ConfigReader) -> list[int]:
        """Return the number of tokens that a token of each layer sees, including itself; 0: all."""
        return [layer.window for layer in self.read_layers(settings)]

    @staticmethod
    def find_part(tensor: str) -> Part:
        """Return where a tensor belongs; see `parallax_core.api.ModelAdapter`."""
        if found := LAYER.match(tensor):
            return int(found.group(1))
        if BEFORE.match(tensor):
            return "before"
        if AFTER.match(tensor):
            return "after"
        raise Unsupported(f"no model of this family has a tensor {tensor!r}", "fetch the model again")
