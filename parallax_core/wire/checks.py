"""Checks that messages of several kinds share."""

from __future__ import annotations

from collections.abc import Mapping

from parallax_core.wire.errors import BadFrame

MOST_PARTS, MOST_NAME = 2**15, 256
"""The most parts of weights, and the most characters in a part's name or digest."""


def require(truth: bool, what: str) -> None:  # noqa: FBT001 - the condition is the argument
    """Raise `BadFrame` with the fault ``what`` unless ``truth``."""
    if not truth:
        raise BadFrame(what)


def check_parts(parts: Mapping[str, str]) -> None:
    """Check the names and digests of the parts of weights."""
    require(len(parts) <= MOST_PARTS, "a stage has more parts than a model")
    for part, digest in parts.items():
        require(max(len(part), len(digest)) <= MOST_NAME, "the name of a part of the weights is too long")
        check_words(part, digest)


def check_words(*words: str) -> None:
    """Check that texts are safe to show to users."""
    require(all(word.isprintable() for word in words), "a text has unprintable characters")
