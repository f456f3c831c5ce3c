"""Lists the merges of a vocabulary whose file has ranks of tokens instead.

SentencePiece and tiktoken merge the two neighbours whose token has the best rank, and of several pairs the leftmost
one; ``tokenizers`` merges the pair with the best rank of its own. All pairs that make a token get ranks in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

Text = TypeVar("Text", str, bytes)


def list_merges(ranked: Iterable[Text], known: Collection[Text]) -> Iterator[tuple[Text, Text]]:
    """Return the pairs of ``known`` tokens that make one of ``ranked``, best rank first.

    Args:
        ranked: tokens, best rank first.
        known: the tokens that may be merged.
    """
    for token in ranked:
        for place in order_splits(token):
            left, right = token[:place], token[place:]
            if left in known and right in known:
                yield left, right


def order_splits(token: str | bytes) -> Iterator[int]:
    """Return the places where a token can be split, in the order in which pairs of it are merged from left to right.

    The order matters where one pair ends with the token that the next begins with, as in ``ab a ba`` for ``aba``: there
    the first is split where the second has its rest, and has to come first.
    """
    size = len(token)
    for place in range(1, (size + 1) // 2):
        other = size - place
        overlaps_short = token[:other] == token[place:]
        overlaps_long = token[:place] == token[other:]
        yield from (place, other) if overlaps_short and not overlaps_long else (other, place)
    if size % 2 == 0:
        yield size // 2
