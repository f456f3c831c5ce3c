"""Converters of the tokenizer files that models have in place of ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class TokenizerConverter(Protocol):
    """Writes the ``tokenizer.json`` of a model from another file of it.

    An entry point of a distribution in ``parallax.tokenizers`` returns one. Its result is cached.
    """

    @property
    def files(self) -> Sequence[str]:
        """The names or patterns of the files that it converts, such as ``*.tiktoken``; the best comes first."""

    @property
    def revision(self) -> int:
        """Raised when the same file gives another tokenizer, so that cached ones are not used."""

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        """Return the contents of a ``tokenizer.json`` with all special tokens; run no code of the model.

        Args:
            file: in the folder of a model, and untrusted; nothing else there is read.
            settings: ``tokenizer_config.json``, completed by ``special_tokens_map.json`` and ``added_tokens.json``.

        Raises:
            ParallaxError: in bounded time, if the file is damaged, too large, or of a kind that cannot be converted.
        """
