"""Refuses tokenizers whose decoder could take time or memory without a bound.

The head decodes each token on its event loop, while all requests wait: with a decoder that is linear in the text, and
makes it only so much longer, that takes some microseconds. A regular expression with repetitions can take for ever, and
replacements in a row can make a text grow without end. No usual tokenizer has either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tokenizers import Tokenizer

from parallax_core.base.errors import ParallaxError

LINEAR = re.compile(r"(\\[^\dkgGKRXpP]|\[\^?[^\[\]\\]+\]|[^\\\[\](){}*+?|])*[*+]?")
"""The regular expressions that a matcher with backtracking follows in linear time, however the text is: characters and
classes, of which only the last may be repeated."""
MOST_GROWTH = 64
"""How many times longer than its tokens a text may become."""
MOST_CHARACTERS = 2**14
"""The longest token, in characters. The longest ones of real vocabularies have some hundreds."""
HINT = "the model may be hostile; if you trust it, simplify the decoder in its tokenizer.json"

DecoderPart = Mapping[str, Any]
"""A decoder, as tokenizer.json has it."""


def check_decoder(tokenizer: Tokenizer) -> None:
    """Check that decoding takes little, whatever the tokens are.

    Raises:
        ParallaxError: if it may not.
    """
    longest = max(map(len, tokenizer.get_vocab()), default=0)
    if longest > MOST_CHARACTERS:
        message = f"the tokenizer has a token of {longest} characters; one may have {MOST_CHARACTERS}"
        raise ParallaxError(message, HINT)
    growth = prod(map(_find_growth, list_parts(tokenizer)))
    if growth > MOST_GROWTH:
        message = f"the tokenizer's decoder can make a text {growth:.3g} times longer; it may be {MOST_GROWTH} times"
        raise ParallaxError(message, HINT)


def list_parts(tokenizer: Tokenizer) -> list[DecoderPart]:
    """Return the decoder of a tokenizer, if any, and its parts."""
    return [] if tokenizer.decoder is None else list(_walk(json.loads(tokenizer.decoder.__getstate__())))


def _walk(decoder: DecoderPart) -> Iterator[DecoderPart]:
    yield decoder
    for each in decoder.get("decoders", ()):
        yield from _walk(each)


def _find_growth(part: DecoderPart) -> float:
    """Return how many times longer a decoder may make a text; raise ParallaxError if it may take for ever."""
    match part.get("type"):
        case "Replace":
            return _find_growth_by(part["pattern"], len(part["content"]))
        case "BPEDecoder":
            return 1.0 if part["suffix"] else 2.0
        case "CTC":
            return 1.0 if part["pad_token"] and part["word_delimiter_token"] else 4.0
        case "WordPiece":
            return 2.0
    return 1.0


def _find_growth_by(pattern: DecoderPart, num_characters: int) -> float:
    if (text := pattern.get("String")) is not None:
        return max(1.0, num_characters / len(text)) if text else 1.0 + num_characters
    if not LINEAR.fullmatch(pattern["Regex"]):
        message = f"the tokenizer's decoder has a regular expression that can take for ever: {pattern['Regex']}"
        raise ParallaxError(message, HINT)
    return 1.0 + num_characters
