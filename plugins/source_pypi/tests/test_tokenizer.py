from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from parallax_formats.gguf import Fields, open_gguf
from parallax_source_pypi.tokenizer import USER_DEFINED, build_tokenizer
from tests.support.tinyllama import TOKENS, TinyLlama


@pytest.fixture
def tokenizer(llama: TinyLlama, tmp_path: Path) -> Tokenizer:
    with open_gguf(llama.write(tmp_path / "tiny.gguf")) as file:
        return build_tokenizer(Fields(file.metadata))


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(tokenizer.encode(text).tokens)


def test_words_are_merged(tokenizer: Tokenizer) -> None:
    assert cut(tokenizer, "hello hello") == ["hello", "Ġhello"]


def test_digits_stand_alone_though_a_merge_would_join_them(tokenizer: Tokenizer) -> None:
    assert "12" in TOKENS
    assert cut(tokenizer, "12345") == ["1", "2", "3", "4", "5"]


def test_control_tokens_are_found_in_text(tokenizer: Tokenizer) -> None:
    assert cut(tokenizer, "<|im_start|>hello<|im_end|>") == ["<|im_start|>", "hello", "<|im_end|>"]


def test_ids_are_those_of_the_file(tokenizer: Tokenizer) -> None:
    assert [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())] == TOKENS


@pytest.mark.parametrize("text", ["hello, wörld \U0001f600", "  a\t\n\r\n b  ", "日本語 12", "\x00\x7f\x80\uffff"])
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([1, TOKENS.index("hello"), 2]) == "hello"


def test_user_defined_tokens_have_text(llama: TinyLlama, tmp_path: Path) -> None:
    llama.values["tokenizer.ggml.token_type"] = [USER_DEFINED] + [1] * (len(TOKENS) - 1)
    with open_gguf(llama.write(tmp_path / "tiny.gguf")) as file:
        tokenizer = build_tokenizer(Fields(file.metadata))
    assert tokenizer.decode(tokenizer.encode("a<|endoftext|>").ids) == "a<|endoftext|>"
