"""Bounds what a tokenizer file may hold, so that a hostile one is refused soon."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from parallax_core.api import ParallaxError

MOST_FILE_BYTES = 2**25
"""The largest file. The largest ones of real models have some 5 MB."""
MOST_TOKENS = 2**20
"""The most tokens of a vocabulary. Real ones have up to some 260 000."""
MOST_TOKEN_LENGTH = 2**11
"""The longest token, in characters or bytes. Real ones have up to some hundreds."""
MOST_SPLITS = 2**24
"""The most places, in all tokens together, at which one can be split; each may be a merge."""
HINT = "fetch the model again, or use another copy of it"


def damaged(file: Path, reason: str) -> ParallaxError:
    """Return the error of a file that cannot be read."""
    return ParallaxError(f"{file} is not a usable tokenizer: {reason}", HINT)


def read_bounded(file: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        ParallaxError: if it is too large, or cannot be read.
    """
    try:
        with file.open("rb") as source:
            data = source.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise damaged(file, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_FILE_BYTES:
        raise damaged(file, f"it has more than {MOST_FILE_BYTES} bytes")
    return data


def check_tokens(file: Path, tokens: Iterable[str | bytes]) -> None:
    """Check that the tokens are neither too many nor too long.

    Raises:
        ParallaxError: if they are.
    """
    lengths = list(map(len, tokens))
    if not lengths:
        raise damaged(file, "it has no tokens")
    if len(lengths) > MOST_TOKENS:
        raise damaged(file, f"it has more than {MOST_TOKENS} tokens")
    if (longest := max(lengths)) > MOST_TOKEN_LENGTH:
        raise damaged(file, f"it has a token of length {longest}; one may have {MOST_TOKEN_LENGTH}")
    if sum(lengths) > MOST_SPLITS:
        raise damaged(file, f"its tokens have a length of {sum(lengths)} together; they may have {MOST_SPLITS}")
