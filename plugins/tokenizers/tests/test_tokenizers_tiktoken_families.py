from __future__ import annotations

from pathlib import Path

import pytest

from parallax_core.api import Unsupported
from parallax_tokenizers.tiktoken_families import choose_family


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiktoken.model", "TikTokenTokenizer"), ("qwen.tiktoken", "QWenTokenizer"), ("hy.tiktoken", "HYTokenizer")],
)
def test_file_without_a_stated_class_is_known_by_its_name(name: str, expected: str) -> None:
    assert choose_family(Path(name), {}).classes == (expected,)


def test_stated_class_counts_before_the_name() -> None:
    assert choose_family(Path("tokenizer.model"), {"tokenizer_class": "ChatGLM4Tokenizer"}).classes == (
        "ChatGLM4Tokenizer",
    )


def test_unknown_family_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="'NewTokenizer' is not known") as caught:
        choose_family(Path("tiktoken.model"), {"tokenizer_class": "NewTokenizer"})
    assert "TikTokenTokenizer" in caught.value.hint
