from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from parallax_core.api import ParallaxError
from parallax_core.models.decoder_check import MOST_CHARACTERS, check_decoder
from parallax_core.models.tokenizer import ModelTokenizer
from tests.unit.tinymodel import write_model


def make_tokenizer(decoder: decoders.Decoder, longest: int = 3) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a" * longest: 0}, unk_token="a" * longest))
    tokenizer.decoder = decoder
    return tokenizer


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.ByteLevel(),
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        decoders.Replace(Regex(r"\s+"), " "),
        decoders.Replace(Regex(r"[^a-z]\.x*"), "--"),
    ],
)
def test_decoders_of_usual_tokenizers_are_accepted(decoder: decoders.Decoder) -> None:
    check_decoder(make_tokenizer(decoder))
    check_decoder(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "a+b", "(a|a)*b", "a*a*a*b", r"(a)\1", "(?=a)b", "a{1,99}b", "a++", "a?b"]
)
def test_regular_expression_that_can_take_for_ever_is_refused(pattern: str) -> None:
    decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex(pattern), "x")])
    with pytest.raises(ParallaxError, match="can take for ever") as caught:
        check_decoder(make_tokenizer(decoder))
    assert pattern in caught.value.message
    assert "simplify the decoder" in caught.value.hint


@pytest.mark.parametrize(
    "parts",
    [
        [decoders.Replace("a", "aa")] * 40,
        [decoders.BPEDecoder("")] * 40,
        [decoders.CTC(word_delimiter_token="")] * 40,
        [decoders.Replace("", "x" * 99)],
        [decoders.Replace(Regex("a"), "x" * 99)],
        [decoders.Sequence([decoders.Sequence([decoders.Replace("a", "a" * 9)] * 9)])],
    ],
)
def test_decoder_that_makes_a_text_grow_without_end_is_refused(parts: list[decoders.Decoder]) -> None:
    with pytest.raises(ParallaxError, match=r"can make a text .* times longer"):
        check_decoder(make_tokenizer(decoders.Sequence(parts)))


def test_token_too_long_to_be_decoded_on_an_event_loop_is_refused() -> None:
    check_decoder(make_tokenizer(decoders.Fuse(), MOST_CHARACTERS))
    with pytest.raises(ParallaxError, match=f"a token of {MOST_CHARACTERS + 1} characters"):
        check_decoder(make_tokenizer(decoders.Fuse(), MOST_CHARACTERS + 1))


def test_model_with_such_a_decoder_is_not_loaded(tmp_path: Path) -> None:
    file = write_model(tmp_path) / "tokenizer.json"
    content = json.loads(file.read_text())
    replace = {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": "x"}
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], replace]}
    file.write_text(json.dumps(content))
    with pytest.raises(ParallaxError, match="the tokenizer's decoder has a regular expression"):
        ModelTokenizer(tmp_path)
