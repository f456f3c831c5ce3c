"""Converts the files of tokenizers that transformers converts, too, or for which a model brings code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_tokenizers.ranks_file import looks_like_ranks
from parallax_tokenizers.sentencepiece import convert_sentencepiece
from parallax_tokenizers.tiktoken import convert_tiktoken


class FileConverter:
    """Converts models of SentencePiece and files of tiktoken; see `TokenizerConverter`."""

    files = ("tokenizer.model", "spiece.model", "tiktoken.model", "*.tiktoken")
    revision = 1

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        """Return the contents of the tokenizer.json; files named ``tokenizer.model`` are of either format.

        Raises:
            OSError: if the file cannot be read.
            ParallaxError: if the file is damaged, too large, or of a kind that cannot be converted.
        """
        with file.open("rb") as source:
            is_ranks = file.suffix == ".tiktoken" or looks_like_ranks(source.read(4096))
        return (convert_tiktoken if is_ranks else convert_sentencepiece)(file, settings).to_str()
