"""Writes the pieces of SentencePiece as GGUF files have them: tokens, types and scores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from tokenizers import AddedToken, Tokenizer

from parallax_core.api import Unsupported
from parallax_tokenizers.added_tokens import read_added
from parallax_tokenizers.sentencepiece import convert_sentencepiece
from parallax_tokenizers.sentencepiece_file import BPE, PieceType, SentencePieceFile, read_sentencepiece

FILE = "tokenizer.model"
HINT = "--for mlx and --for compressed-tensors keep the tokenizer as it is"
LEAST_SCORE = -10000.0
"""Of tokens that text never becomes by joining pieces."""


def add_pieces(
    writer: gguf.GGUFWriter, folder: Path, size: int, settings: Mapping[str, Any]
) -> tuple[list[str], Tokenizer]:
    """Add a BPE of SentencePiece; return its tokens, and the tokenizer.

    Args:
        writer: of the file.
        folder: with ``tokenizer.model``.
        size: the rows of the embedding.
        settings: tokenizer_config.json.

    Raises:
        Unsupported: if llama.cpp does not have what it does: unigrams, maps of characters, spaces that are removed.
        ParallaxError: if the file is damaged.
    """
    found, added = read_sentencepiece(folder / FILE), read_added(folder / FILE, settings)
    reasons = {
        "splits text by unigrams": found.kind != BPE,
        "maps characters": bool(found.precompiled_charsmap),
        "removes spaces": found.remove_extra_whitespaces,
    }
    if reason := next((reason for reason, is_so in reasons.items() if is_so), None):
        raise Unsupported(f"a tokenizer of SentencePiece that {reason} is not written as GGUF", HINT)
    entries = list_pieces(found, added, size)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([token for token, _, _ in entries])
    writer.add_token_scores([score for _, score, _ in entries])
    writer.add_token_types([kind for _, _, kind in entries])
    prefix = settings.get("add_prefix_space")
    writer.add_add_space_prefix(value=prefix if isinstance(prefix, bool) else found.add_dummy_prefix)
    return [token for token, _, _ in entries], convert_sentencepiece(folder / FILE, settings)


def list_pieces(found: SentencePieceFile, added: Mapping[int, AddedToken], size: int) -> list[tuple[str, float, int]]:
    """Return the token, the score and the type of each id; ids without a token get one that is never used."""
    entries = {number: (f"[PAD{number}]", LEAST_SCORE, int(gguf.TokenType.UNUSED)) for number in range(size)}
    entries |= {number: (each.text, each.score, int(each.type)) for number, each in enumerate(found.pieces)}
    known = {piece.text: number for number, piece in enumerate(found.pieces)}
    for number, token in added.items():
        kind = gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED
        at = known.get(token.content, number)
        is_special = at < len(found.pieces) and found.pieces[at].type == PieceType.UNKNOWN
        entries[at] = (token.content, LEAST_SCORE, int(gguf.TokenType.UNKNOWN if is_special else kind))
    if len(entries) > size:
        raise Unsupported(f"the tokenizer has {len(entries)} tokens, and the model {size}", HINT)
    return [entry for _, entry in sorted(entries.items())]
