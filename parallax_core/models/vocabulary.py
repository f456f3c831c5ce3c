"""Returns the bytes of single tokens, which decoding a token alone does not always show."""

from __future__ import annotations

import re
from functools import cache

from tokenizers import Tokenizer

from parallax_core.models.decoder_check import list_parts

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""The character for a space in SentencePiece vocabularies."""


class Vocabulary:
    """Maps each token of a tokenizer to its bytes and its text.

    It knows two kinds of vocabularies: byte-level ones, in which every character stands for a byte (GPT-2), and those
    with a mark for spaces and tokens such as ``<0x0A>`` for bytes (SentencePiece). Tokens of other vocabularies, and
    added tokens, stand for themselves.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        kinds = {str(part.get("type")) for part in list_parts(tokenizer)}
        self._is_byte_level = "ByteLevel" in kinds
        self._is_marked = bool(kinds & {"Metaspace", "ByteFallback"})
        self.size: int = tokenizer.get_vocab_size()

    def find_bytes(self, token: int) -> bytes:
        """Return the bytes of a token, as a part of UTF-8 text; empty for an unused id."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if piece in self._added:
            return piece.encode()
        if self._is_byte_level:
            alphabet = byte_alphabet()
            return bytes(alphabet[char] for char in piece) if set(piece) <= alphabet.keys() else piece.encode()
        if self._is_marked:
            found = BYTE.fullmatch(piece)
            return bytes([int(found.group(1), 16)]) if found else piece.replace(SPACE, " ").encode()
        return piece.encode()

    def find_piece(self, token: int) -> str:
        """Return a token as the vocabulary writes it, such as ``Ġhello``; empty for an unused id."""
        piece: str | None = self._tokenizer.id_to_token(token)
        return piece or ""

    def show(self, token: int) -> str:
        """Return a token as text; one that is not valid UTF-8 alone as hexadecimal bytes, as OpenAI does."""
        data = self.find_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the byte for which each character of a byte-level vocabulary stands.

    Printable bytes of Latin-1 stand for themselves, the others are numbered from U+0100 on (GPT-2's encoder.py).
    """
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}
