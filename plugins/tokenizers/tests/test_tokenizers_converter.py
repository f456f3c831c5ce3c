"""The converter passes the kit for both formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parallax_core.contracts.tokenizer import TokenizerConverter
from parallax_core.testing.tokenizer_converter import TokenizerConverterConformance
from parallax_tokenizers.converter import FileConverter
from plugins.tokenizers.tests.conftest import write_ranks
from tests.support.tokenizer_texts import train


class TestTiktoken(TokenizerConverterConformance):
    settings: Mapping[str, Any] = {"tokenizer_class": "QWenTokenizer"}
    samples = (("abab b", [257, 32, 98]), ("<|im_end|>é", [260, 0xC3, 0xA9]))
    special: Mapping[str, int] = {"<|endoftext|>": 258}

    def make_converter(self) -> TokenizerConverter:
        return FileConverter()

    def write_file(self, folder: Path) -> Path:
        return write_ranks(folder / "qwen.tiktoken", [*(bytes([byte]) for byte in range(256)), b"ab", b"abab"])


class TestSentencePiece(TokenizerConverterConformance):
    samples = (("</s>", [2]), ("\x07", [259 + 3 - 259 + 7]))
    special: Mapping[str, int] = {"<s>": 1}

    def make_converter(self) -> TokenizerConverter:
        return FileConverter()

    def write_file(self, folder: Path) -> Path:
        options = {"model_type": "bpe", "vocab_size": 500, "add_dummy_prefix": False, "byte_fallback": True}
        train(folder / "tokenizer.model", normalization_rule_name="identity", remove_extra_whitespaces=False, **options)
        return folder / "tokenizer.model"
