"""Converted files of tiktoken encode and decode as the library itself does."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import tiktoken
from tokenizers import Tokenizer

from parallax_core.engine.detokenizer import Detokenizer
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_tokenizers.tiktoken import convert_tiktoken
from parallax_tokenizers.tiktoken_families import FAMILIES, TiktokenFamily
from plugins.tokenizers.tests.conftest import write_ranks
from tests.support.tokenizer_texts import make_texts

COUNT = 10_000


def make_encoding(family: TiktokenFamily, ranks: list[bytes]) -> tiktoken.Encoding:
    numbered = {token: rank for rank, token in enumerate(ranks)}
    return tiktoken.Encoding("test", pat_str=family.pattern, mergeable_ranks=numbered, special_tokens={})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.classes[0])
def test_tokens_and_texts_are_those_of_the_library(tmp_path: Path, ranks: list[bytes], family: TiktokenFamily) -> None:
    settings = {"tokenizer_class": family.classes[0]}
    file = write_ranks(tmp_path / (family.file or "tokenizer.model"), ranks)
    encoding = make_encoding(family, ranks)
    tokenizer = Tokenizer.from_str(convert_tiktoken(file, settings).to_str())
    tokenizer.encode_special_tokens = True
    for text in make_texts(COUNT):
        theirs = encoding.encode_ordinary(unicodedata.normalize("NFC", text) if family.is_composed else text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == theirs, text
        assert tokenizer.decode(theirs, skip_special_tokens=False) == encoding.decode(theirs), text


def test_answer_is_streamed_as_the_library_decodes_it(tmp_path: Path, ranks: list[bytes]) -> None:
    write_ranks(tmp_path / "tiktoken.model", ranks)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "TikTokenTokenizer"}')
    text, encoding = ModelTokenizer(tmp_path), make_encoding(FAMILIES[0], ranks)
    for each in make_texts(500, seed=3):
        tokens = encoding.encode_ordinary(each)
        detokenizer = Detokenizer(text.decode)
        assert "".join(map(detokenizer.feed, tokens)) + detokenizer.finish() == each


def test_special_tokens_come_after_those_of_the_file(tmp_path: Path, ranks: list[bytes]) -> None:
    few = ranks[:300]
    qwen = convert_tiktoken(write_ranks(tmp_path / "qwen.tiktoken", few), {"tokenizer_class": "QWenTokenizer"})
    assert qwen.encode("<|im_start|>a<|im_end|>").ids == [301, ord("a"), 302]
    listed = {"304": {"content": "<|im_end|>", "special": True}, "300": {"content": "[BOS]", "special": True}}
    settings = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": listed}
    kimi = convert_tiktoken(write_ranks(tmp_path / "tiktoken.model", few), settings)
    assert kimi.encode("[BOS]<|im_end|><|reserved_token_303|>").ids == [300, 304, 303]
    assert kimi.get_vocab_size() == 300 + 256
    llama = convert_tiktoken(
        write_ranks(tmp_path / "tokenizer.model", few), {"tokenizer_class": "PreTrainedTokenizerFast"}
    )
    assert llama.encode("a<|eot_id|>").ids == [300, ord("a"), 309]


def test_token_that_no_merge_gives_is_found_as_a_whole(tmp_path: Path) -> None:
    file = write_ranks(tmp_path / "tiktoken.model", [*(bytes([byte]) for byte in range(256)), b"xyz"])
    tokenizer = convert_tiktoken(file, {"tokenizer_class": "TikTokenTokenizer"})
    assert tokenizer.encode("xyz xyzz").ids == [256, *b" xyzz"]
