"""Rules and pieces beside other implementations: the ``regex`` module, SentencePiece itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import regex
import sentencepiece
from tokenizers import Regex, Tokenizer, pre_tokenizers

from parallax_formats.gguf import Fields
from parallax_formats.gguf.file import Scalar, Value
from parallax_source_pypi.pretokenizers import RULES
from parallax_source_pypi.tokenizer import build_tokenizer

RARE = (
    "\u0301\u0f0b\u200d\u202e\u3042\u4e2d\uac00\U0001f600\U0001f468\ufeff\x00\x7f\u00ad\u1e9e\u01c5\u0660\u2167\u00bd"
)
PARTS = (
    *(
        "a",
        "B",
        "é",
        "Ж",
        "ß",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u3000",
        "1",
        "23",
        "4567",
        "٣",
        "'s",
        "'LL",
        "'",
    ),
    *("don't", "HelloWorld", "snake_case", "/", "//", "...", "!?", "<|x|>", "中文", "かな", "한국", "e\u0301", *RARE),
)
PATTERNS = sorted({rule.patterns for rule in RULES.values()})


def draw_texts(count: int, seed: int = 5) -> Iterator[str]:
    """Yield random texts, and hostile ones."""
    yield from ("", " ", "\n" * 50, " " * 70, "a" * 500, "'" * 40, "1" * 99, "\u0301" * 30, "".join(PARTS))
    source = random.Random(seed)
    for _ in range(count):
        yield "".join(source.choice(PARTS) for _ in range(source.randrange(1, 25)))


def split_by_regex(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Return words: what each pattern matches is a word of its own, and so is what lies between."""
    words = [text] if text else []
    for pattern in map(regex.compile, patterns):
        found = []
        for word in words:
            end = 0
            for match in pattern.finditer(word):
                found += [word[end : match.start()], match[0]]
                end = match.end()
            found.append(word[end:])
        words = [word for word in found if word]
    return words


@pytest.mark.parametrize("patterns", PATTERNS, ids=range(len(PATTERNS)))
def test_rules_cut_as_another_engine_of_patterns_does(patterns: tuple[str, ...]) -> None:
    ours = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
    for text in draw_texts(300):
        assert [word for word, _ in ours.pre_tokenize_str(text)] == split_by_regex(text, patterns), repr(text)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> sentencepiece.SentencePieceProcessor:
    folder: Path = tmp_path_factory.mktemp("pieces")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(text.replace("\n", " ").replace("\x00", "") for text in draw_texts(800, 1)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "pieces"),
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(str(folder / "pieces.model"))


def build_from(pieces: sentencepiece.SentencePieceProcessor, *, has_prefix: bool) -> Tokenizer:
    """Return the tokenizer of a GGUF file with these pieces, written as llama.cpp's conversion does."""
    count = range(pieces.get_piece_size())
    kinds: list[Scalar] = [
        2 if pieces.is_unknown(each) else 3 if pieces.is_control(each) else 6 if pieces.is_byte(each) else 1
        for each in count
    ]
    values: dict[str, Value] = {
        "model": "llama",
        "tokens": [pieces.id_to_piece(each) for each in count],
        "scores": [pieces.get_score(each) for each in count],
        "token_type": kinds,
        "bos_token_id": pieces.bos_id(),
        "eos_token_id": pieces.eos_id(),
        "add_space_prefix": has_prefix,
    }
    return build_tokenizer(Fields({f"tokenizer.ggml.{key}": value for key, value in values.items()}))


def test_pieces_are_those_of_sentencepiece(pieces: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = build_from(pieces, has_prefix=True)
    for text in draw_texts(400):
        if text and "\x00" not in text and not text.startswith("\u2581"):
            assert tokenizer.encode(text).ids == [pieces.bos_id(), *pieces.encode(text)], repr(text)
            assert tokenizer.decode(tokenizer.encode(text).ids) == text, repr(text)


def test_pieces_without_a_space_in_front_come_back(pieces: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = build_from(pieces, has_prefix=False)
    assert tokenizer.encode(" a").tokens[1].startswith("\u2581")
    for text in draw_texts(100):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text, repr(text)


@pytest.mark.parametrize(("name", "wanted"), [("qwen2", [0, 1]), ("llama-bpe", [3, 0, 1]), ("tekken", [3, 0, 1])])
def test_texts_begin_as_the_rule_or_the_file_says(name: str, wanted: list[int]) -> None:
    values: dict[str, Value] = {
        "model": "gpt2",
        "pre": name,
        "tokens": ["a", "b", "c", "<s>"],
        "token_type": [1, 1, 1, 3],
        "merges": [],
        "bos_token_id": 3,
        "eos_token_id": 3,
    }

    def encode(**more: bool) -> list[int]:
        fields = {f"tokenizer.ggml.{key}": value for key, value in (values | more).items()}
        return list(build_tokenizer(Fields(fields)).encode("ab").ids)

    assert encode() == wanted
    assert encode(add_bos_token=False) == [0, 1]
    assert encode(add_bos_token=True, add_eos_token=True) == [3, 0, 1, 3]
