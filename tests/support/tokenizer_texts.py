"""Texts that are hard to tokenize, and models of SentencePiece that are trained on the documentation."""

from __future__ import annotations

import io
import random
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
FEW = "ab ba aab  abab\n\t<>0x41{}[],.!?'\"$12345"
MANY = "é\u00bd\ufb01\uff21\uff42\u2460\u65e5\u672c\u8a9e\u043a\u0438\u0440\ud55c\uc5b4\U0001f642\u00a0\u3000"
MARKS = f"\u0301\u200d\U0001f469\u200d\U0001f467{SPACE}"
OTHERS = [
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "кириллица",
    "aaaa abab ababab aabaab " * 3,
    "<0x41> <s> 0123456789",
]
DEFINED = ["<|u1|>", "<|u12|>", SPACE * 2, "\n\n", "ab<ba"]
"""Pieces that a user defined, of which one begins another and one has a mark for spaces."""


@cache
def list_lines() -> list[str]:
    """Return lines of the documentation, and some in other scripts."""
    pages = sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [*lines[:6000], *OTHERS * 20]


def make_texts(count: int, *, with_marks: bool = True, seed: int = 1) -> list[str]:
    """Return texts of few and of many characters, words, any characters, and one character repeated."""
    source = random.Random(seed)
    letters = FEW + MANY + (MARKS if with_marks else "")
    lines = list_lines()
    words = [word for line in lines for word in line.split(" ")]

    def make() -> str:
        match source.randrange(10):
            case 0 | 1 | 2:
                return "".join(source.choices(letters, k=source.randrange(40)))
            case 3 | 4:
                return "".join(source.choices("ab ", k=source.randrange(60)))
            case 5 | 6:
                return (" " * source.randrange(3)).join(source.choices(words, k=source.randrange(12)))
            case 7 if with_marks:
                return "".join(_pick(source) for _ in range(source.randrange(20)))
            case 8:
                return source.choice([" ", "\n", "<0x41>", "<unk", "a"]) * source.randrange(40)
        return source.choice(lines)[source.randrange(10) : source.randrange(10, 80)]

    return [make() for _ in range(count)]


def _pick(source: random.Random) -> str:
    """Return any character that is no surrogate."""
    low, high = source.choice([(32, 0x250), (0x250, 0xD800), (0xE000, 0x1FFFF)])
    return chr(source.randrange(low, high))


def train(file: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """Write a small model of SentencePiece, and return what encodes with it."""
    written = io.BytesIO()
    given = {"vocab_size": 2000, "hard_vocab_limit": False, "minloglevel": 2, "num_threads": 1, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(list_lines()), model_writer=written, **given)
    file.write_bytes(written.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(file))
