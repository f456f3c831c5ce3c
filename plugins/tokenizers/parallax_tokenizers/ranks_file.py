"""Reads the files of tiktoken: a token in base64 and its rank in each line."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from parallax_tokenizers.limits import MOST_TOKENS, check_tokens, damaged, read_bounded


def looks_like_ranks(data: bytes) -> bool:
    """Return whether a file begins with a line of such a file; models of SentencePiece do not."""
    token, _, rank = data[:4096].partition(b"\n")[0].partition(b" ")
    return bool(token) and rank.strip().isdigit()


def read_ranks(file: Path) -> list[bytes]:
    """Return the tokens by rank, which is their id.

    Raises:
        ParallaxError: if the file is damaged or too large.
    """
    lines = read_bounded(file).split(b"\n", MOST_TOKENS + 1)
    ranks: dict[int, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        token, rank = _read_line(file, number, line)
        if rank in ranks:
            raise damaged(file, f"line {number} has the rank {rank}, which an earlier one has")
        ranks[rank] = token
    tokens = [ranks[rank] for rank in sorted(ranks)]
    _check(file, tokens, max(ranks, default=0))
    return tokens


def _read_line(file: Path, number: int, line: bytes) -> tuple[bytes, int]:
    parts = line.split()
    try:
        [text, rank] = parts
        return base64.b64decode(text, validate=True), int(rank.decode("ascii"))
    except (ValueError, binascii.Error) as error:
        shown = line[:80].decode("ascii", "backslashreplace")
        raise damaged(file, f"line {number} is not a token in base64 and its rank: {shown!r}") from error


def _check(file: Path, tokens: list[bytes], last: int) -> None:
    check_tokens(file, tokens)
    if b"" in tokens:
        raise damaged(file, f"the token of rank {tokens.index(b'')} is empty")
    if last != len(tokens) - 1:
        raise damaged(file, f"its last rank is {last}, of {len(tokens)} tokens")
    known = set(tokens)
    if len(known) < len(tokens):
        raise damaged(file, "a token occurs twice")
    if missing := [byte for byte in range(256) if bytes([byte]) not in known]:
        raise damaged(file, f"it has no token for the byte {missing[0]}")
