"""Reads the model files of SentencePiece: ``sentencepiece_model.proto``, version 0.2."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path

from parallax_core.api import Unsupported
from parallax_tokenizers.limits import MOST_TOKENS, check_tokens, damaged, read_bounded
from parallax_tokenizers.protobuf import Field, read_fields

UNIGRAM, BPE = 1, 2
"""Kinds of models."""
MOST_FIELDS = MOST_TOKENS + 16
"""The most pieces and other parts of a file."""
KINDS = {3: "whole words", 4: "single characters"}


class PieceType(IntEnum):
    """What a piece is for."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of the vocabulary."""

    text: str
    score: float = 0.0
    type: PieceType = PieceType.NORMAL


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceFile:
    """A model; its fields have the names of the proto."""

    pieces: Sequence[Piece]
    """By id."""
    kind: int
    """`UNIGRAM` or `BPE`."""
    byte_fallback: bool
    bos_id: int
    eos_id: int
    map_name: str
    precompiled_charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool

    def list_texts(self, *types: PieceType) -> list[str]:
        """Return the texts of the pieces of some types, by id."""
        return [piece.text for piece in self.pieces if piece.type in types]


def read_sentencepiece(file: Path) -> SentencePieceFile:
    """Return the model in ``file``.

    Raises:
        ParallaxError: if it is damaged or too large.
        Unsupported: if it is of a kind that cannot be converted.
    """
    data = read_bounded(file)
    try:
        fields = _list_fields(data)
        pieces = [_read_piece(value) for number, value in fields if number == 1]
        trainer, normalizer = _merge(fields, 2), _merge(fields, 3)
        found = _read_model(pieces, trainer, normalizer)
    except ValueError as error:
        raise damaged(file, str(error)) from error
    _check(file, found)
    _refuse(file, found.kind, trainer, normalizer)
    return found


def _list_fields(data: bytes) -> list[Field]:
    fields = list(islice(read_fields(data), MOST_FIELDS + 1))
    if len(fields) > MOST_FIELDS:
        raise ValueError(f"it has more than {MOST_FIELDS} pieces and other parts")
    return fields


def _read_piece(value: int | bytes) -> Piece:
    fields = dict(read_fields(_as_bytes(value)))
    score = struct.unpack("<f", _as_bytes(fields[2]))[0] if 2 in fields else 0.0  # noqa: PLR2004 -- field numbers
    if not math.isfinite(score):
        raise ValueError("a score is not a finite number")
    return Piece(_as_bytes(fields.get(1, b"")).decode(), score, PieceType(_as_int(fields.get(3, PieceType.NORMAL))))


def _read_model(
    pieces: Sequence[Piece], trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes]
) -> SentencePieceFile:
    return SentencePieceFile(
        pieces=pieces,
        kind=_as_int(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(_as_int(trainer.get(35, 0))),
        bos_id=_as_int(trainer.get(41, 1)),
        eos_id=_as_int(trainer.get(42, 2)),
        map_name=_as_bytes(normalizer.get(1, b"")).decode(),
        precompiled_charsmap=_as_bytes(normalizer.get(2, b"")),
        add_dummy_prefix=bool(_as_int(normalizer.get(3, 1))),
        remove_extra_whitespaces=bool(_as_int(normalizer.get(4, 1))),
    )


def _merge(fields: Sequence[Field], number: int) -> dict[int, int | bytes]:
    """Return the fields of a part of the model; of a repeated one the last counts."""
    parts = [_as_bytes(value) for found, value in fields if found == number]
    return dict(read_fields(b"".join(parts)))


def _check(file: Path, model: SentencePieceFile) -> None:
    """Check the vocabulary, since the library would take one that it cannot look up."""
    check_tokens(file, [piece.text for piece in model.pieces])
    texts = [piece.text for piece in model.pieces]
    if "" in texts:
        raise damaged(file, f"piece {texts.index('')} is empty")
    if len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise damaged(file, f"the piece {twice!r} occurs twice")
    if len(model.list_texts(PieceType.UNKNOWN)) != 1:
        raise damaged(file, "it has no piece for unknown text, or several")
    missing = {f"<0x{byte:02X}>" for byte in range(256)} - set(model.list_texts(PieceType.BYTE))
    if model.byte_fallback and missing:
        raise damaged(file, f"it has no piece for the byte {min(missing)}")


def _refuse(file: Path, kind: int, trainer: dict[int, int | bytes], normalizer: dict[int, int | bytes]) -> None:
    reasons = {
        f"splits text into {KINDS.get(kind, 'parts of an unknown kind')}": kind not in (UNIGRAM, BPE),
        "marks the ends of words": bool(trainer.get(24, 0)),
        "keeps spaces as they are": not normalizer.get(5, 1),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise cannot_convert(file, reason)


def cannot_convert(file: Path, reason: str) -> Unsupported:
    """Return the error for a model of a kind that cannot be converted, since it ``reason``."""
    return Unsupported(f"{file} cannot be converted: it {reason}", "use a model with a tokenizer.json")


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in place of a text or a part")  # noqa: TRY004 -- a fault of the file
    return value


def _as_int(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("a text in place of a number")  # noqa: TRY004 -- a fault of the file
    return value - 2**64 if value >= 2**63 else value
