"""Follows texts through compiled grammars, and writes random ones that they allow."""

from __future__ import annotations

import random

from parallax_core.contracts.grammar import Matcher
from parallax_core.models.tokenizer import ModelTokenizer

MOST_TOKENS = 400


def list_allowed(mask: bytes) -> list[int]:
    return [token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1]


def follow(text: ModelTokenizer, matcher: Matcher, answer: str) -> tuple[bool, bool]:
    """Return whether every token of an answer is allowed, and whether it may end then."""
    for token in text.encode(answer):
        if token not in list_allowed(matcher.find_mask(text.stop_ids, may_end=True)):
            return False, False
        matcher.advance([token])
    return True, not text.stop_ids.isdisjoint(list_allowed(matcher.find_mask(text.stop_ids, may_end=True)))


def generate(text: ModelTokenizer, matcher: Matcher, source: random.Random) -> str | None:
    """Return a text of random allowed tokens, or None if it does not end in time."""
    tokens: list[int] = []
    for _ in range(MOST_TOKENS):
        allowed = list_allowed(matcher.find_mask(text.stop_ids, may_end=True))
        token = source.choice([*allowed, *(allowed[-1:] * 40 if not text.stop_ids.isdisjoint(allowed) else [])])
        if token in text.stop_ids:
            return text.decode(tokens)
        tokens.append(token)
        matcher.advance([token])
    return None
