"""Converted models of SentencePiece encode and decode as the library itself does."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Tokenizer

from parallax_core.api import Unsupported
from parallax_core.engine.detokenizer import Detokenizer
from parallax_core.models.tokenizer import ModelTokenizer
from parallax_tokenizers.sentencepiece import convert_sentencepiece
from tests.support.tokenizer_texts import DEFINED, SPACE, make_texts, train

Model: Any = vars(sentencepiece_model_pb2)["ModelProto"]
COUNT = 10_000
PLAIN: Mapping[str, Any] = {
    "normalization_rule_name": "identity",
    "byte_fallback": True,
    "remove_extra_whitespaces": False,
}
LOOKS = ("<s>", "</s>", "<unk>", "<0x41>", "<0xE2>", "<s", "s>", "<")
"""Texts of which some are those of pieces that no text becomes."""
DEFINED_PIECES = {"user_defined_symbols": DEFINED}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": PLAIN,
    "no prefix, defined pieces": {**PLAIN, "add_dummy_prefix": False, **DEFINED_PIECES},
    "prefix, defined pieces": {**PLAIN, "remove_extra_whitespaces": True, **DEFINED_PIECES},
    "few characters": {**PLAIN, "character_coverage": 0.98},
    "few characters, defined pieces": {**PLAIN, "character_coverage": 0.98, **DEFINED_PIECES},
    "no bytes": {**PLAIN, "byte_fallback": False, "remove_extra_whitespaces": True},
    "digits": {**PLAIN, "split_digits": True, "allow_whitespace_only_pieces": True},
}
MAPPED: Mapping[str, Mapping[str, Any]] = {
    name: {"normalization_rule_name": name, "byte_fallback": True} for name in ("nmt_nfkc", "nfkc", "nfkc_cf")
}


def insert_defined(texts: list[str]) -> list[str]:
    """Return the texts, most with a defined piece in them or in front, and some that look like other pieces."""
    source = random.Random(2)
    looks = [f"{first}{look}{second}" for look in LOOKS for first in DEFINED for second in DEFINED]
    return [*looks, *(text[: source.randrange(6)] + source.choice([*DEFINED, ""]) + text for text in texts)]


def convert(file: Path, settings: Mapping[str, Any] | None = None) -> Tokenizer:
    """Return a tokenizer that takes the texts of special tokens for text, as the library does."""
    tokenizer = Tokenizer.from_str(convert_sentencepiece(file, settings or {}).to_str())
    tokenizer.encode_special_tokens = True
    return tokenizer


def compare(model: SentencePieceProcessor, tokenizer: Tokenizer, texts: list[str], *, may_tie: bool) -> None:
    """Fail where tokens or decoded texts differ; where it may tie, equally likely splits are allowed."""
    ties = 0
    for text in texts:
        ours, theirs = tokenizer.encode(text, add_special_tokens=False).ids, model.encode(text)
        if may_tie and ours != theirs:
            scores = [sum(map(model.get_score, map(int, tokens))) for tokens in (ours, theirs)]
            assert scores[0] == pytest.approx(scores[1], abs=1e-3), text
            ties += 1
            continue
        assert ours == theirs, text
        if model.unk_id() not in ours and not text.lstrip(" ").startswith(SPACE):
            assert tokenizer.decode(ours, skip_special_tokens=False) == model.decode(ours), text
    assert ties <= len(texts) // 50


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_and_texts_are_those_of_the_library(tmp_path: Path, kind: str, variant: str) -> None:
    options = VARIANTS[variant]
    model = train(tmp_path / "tokenizer.model", model_type=kind, **options)
    texts = make_texts(COUNT)
    compare(
        model,
        convert(tmp_path / "tokenizer.model"),
        insert_defined(texts) if "user_defined_symbols" in options else texts,
        may_tie=kind == "unigram",
    )


def add_pieces(file: Path, texts: Sequence[str]) -> SentencePieceProcessor:
    """Add pieces of which no two parts are pieces, and return what encodes with them."""
    model = Model.FromString(file.read_bytes())
    for number, text in enumerate(texts):
        model.pieces.append(Model.SentencePiece(piece=text, score=-1e6 - number))
    file.write_bytes(model.SerializeToString())
    return SentencePieceProcessor(model_file=str(file))


def test_pieces_that_no_text_becomes_are_none_between_defined_ones_either(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", model_type="bpe", **VARIANTS["prefix, defined pieces"])
    pieces = ["$qz$", "\u65e5\U0001f642\U0001f642", "\U0001f9ff\U0001f642\U0001f9ff"]
    model = add_pieces(tmp_path / "tokenizer.model", pieces)
    texts = [f"{first}{piece}{second}" for piece in pieces for first in ("", *DEFINED) for second in ("", *DEFINED)]
    compare(model, convert(tmp_path / "tokenizer.model"), texts, may_tie=False)


def test_model_with_too_many_pieces_that_no_text_becomes_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", model_type="bpe", **VARIANTS["prefix, defined pieces"])
    add_pieces(tmp_path / "tokenizer.model", [f"$q{number}z$" for number in range(4096)])
    with pytest.raises(
        Unsupported, match=r"tokenizer.model cannot be converted: it defines pieces, and has others that"
    ):
        convert(tmp_path / "tokenizer.model")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("variant", MAPPED)
def test_mapped_characters_are_those_of_the_library(tmp_path: Path, kind: str, variant: str) -> None:
    model = train(tmp_path / "tokenizer.model", model_type=kind, **MAPPED[variant])
    texts = [*make_texts(COUNT, with_marks=False), "e\u0301 a\u0301\u3000\u200d \u1112\u1161\u11ab", "A\u030a\u00a0x"]
    compare(model, convert(tmp_path / "tokenizer.model"), texts, may_tie=kind == "unigram")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_answer_is_streamed_as_the_library_decodes_it(tmp_path: Path, kind: str) -> None:
    model = train(tmp_path / "tokenizer.model", model_type=kind, **PLAIN)
    (tmp_path / "config.json").write_text("{}")
    text = ModelTokenizer(tmp_path)
    for each in make_texts(500, seed=3):
        tokens = model.encode(each)
        detokenizer = Detokenizer(text.decode)
        shown = "".join(map(detokenizer.feed, tokens)) + detokenizer.finish()
        assert shown == model.decode(tokens)


def test_special_tokens_have_the_ids_that_the_settings_say(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", model_type="bpe", **PLAIN)
    size = len(convert(tmp_path / "tokenizer.model").get_vocab())
    listed = {
        str(size + 3): {"content": "<|end|>", "special": True},
        str(size): {"content": "<tool>", "special": False},
    }
    settings = {"added_tokens_decoder": listed, "tokenizer_class": "LlamaTokenizer", "eos_token": "<|end|>"}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    text = ModelTokenizer(tmp_path)
    assert text.encode("<|end|><tool>", special=False) == (size + 3, size)
    assert text.decode([size + 3, size]) == "<tool>"
    assert text.encode("") == (1,)
    assert size + 3 in text.stop_ids


def test_mark_for_a_space_is_put_before_each_part_or_the_first(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", model_type="bpe", **PLAIN)
    added = {"added_tokens_decoder": {"5000": {"content": "<|x|>", "special": True}}}
    each, first = (Tokenizer.from_str(convert_sentencepiece(tmp_path / "tokenizer.model", added | settings).to_str())
                   for settings in ({}, {"legacy": False}))  # fmt: skip
    assert each.encode("the<|x|>the").tokens == [f"{SPACE}the", "<|x|>", f"{SPACE}the"]
    assert f"{SPACE}the" not in first.encode("<|x|>the").tokens
    assert first.encode(" the").tokens == each.encode(" the").tokens


def test_unigram_ids_are_whole_although_the_added_ones_have_gaps(tmp_path: Path) -> None:
    train(tmp_path / "tokenizer.model", model_type="unigram", **PLAIN)
    tokenizer = convert(tmp_path / "tokenizer.model", {"added_tokens_decoder": {"2100": {"content": "<x>"}}})
    assert tokenizer.token_to_id("<x>") == 2100
    assert tokenizer.id_to_token(2099) == "<|unused_2099|>"
