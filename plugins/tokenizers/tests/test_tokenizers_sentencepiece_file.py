from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import sentencepiece_model_pb2

from parallax_core.api import ParallaxError, Unsupported
from parallax_core.checkpoint.tokenizer_converters import FoundConverter
from parallax_core.models.tokenizer_conversion import convert_tokenizer
from parallax_tokenizers.converter import FileConverter
from parallax_tokenizers.sentencepiece_file import PieceType, read_sentencepiece
from tests.support.tokenizer_texts import train

Model: Any = vars(sentencepiece_model_pb2)["ModelProto"]
"""Its message, which the library makes at run time."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("model") / "tokenizer.model"
    train(file, model_type="bpe", vocab_size=600, byte_fallback=True)
    return file.read_bytes()


def parse(data: bytes) -> Any:
    found = Model()
    found.ParseFromString(data)
    return found


def read(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.model").write_bytes(data)
    read_sentencepiece(folder / "tokenizer.model")


def test_fields_are_those_that_protobuf_reads(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    found, expected = read_sentencepiece(tmp_path / "tokenizer.model"), parse(data)
    assert [(piece.text, piece.score, piece.type) for piece in found.pieces] == [
        (piece.piece, piece.score, piece.type) for piece in expected.pieces
    ]
    assert (found.kind, found.byte_fallback) == (expected.trainer_spec.model_type, expected.trainer_spec.byte_fallback)
    normalizer = expected.normalizer_spec
    assert (found.map_name, found.precompiled_charsmap) == (normalizer.name, normalizer.precompiled_charsmap)
    assert (found.bos_id, found.eos_id) == (1, 2)


def test_duplicate_and_empty_pieces_are_named(tmp_path: Path, data: bytes) -> None:
    model = parse(data)
    model.pieces[300].piece = model.pieces[299].piece
    with pytest.raises(ParallaxError, match="occurs twice"):
        read(tmp_path, model.SerializeToString())
    model.pieces[300].piece = ""
    with pytest.raises(ParallaxError, match="piece 300 is empty"):
        read(tmp_path, model.SerializeToString())


def test_scores_have_to_be_numbers(tmp_path: Path, data: bytes) -> None:
    model = parse(data)
    model.pieces[300].score = float("nan")
    with pytest.raises(ParallaxError, match="not a finite number"):
        read(tmp_path, model.SerializeToString())


def test_missing_bytes_and_unknown_piece_are_named(tmp_path: Path, data: bytes) -> None:
    model = parse(data)
    byte = next(piece for piece in model.pieces if piece.type == PieceType.BYTE)
    byte.piece = "other"
    with pytest.raises(ParallaxError, match="no piece for the byte <0x00>"):
        read(tmp_path, model.SerializeToString())
    model.pieces[0].type = PieceType.CONTROL
    with pytest.raises(ParallaxError, match="no piece for unknown text"):
        read(tmp_path, model.SerializeToString())


def test_kinds_that_cannot_be_converted_are_named(tmp_path: Path, data: bytes) -> None:
    for change, reason in (
        ("model_type", "splits text into whole words"),
        ("treat_whitespace_as_suffix", "marks the ends"),
    ):
        model = parse(data)
        setattr(model.trainer_spec, change, 3 if change == "model_type" else True)
        with pytest.raises(Unsupported, match=reason):
            read(tmp_path, model.SerializeToString())
    model = parse(data)
    model.normalizer_spec.escape_whitespaces = False
    with pytest.raises(Unsupported, match="keeps spaces"):
        read(tmp_path, model.SerializeToString())


def test_damage_is_refused_or_harmless_wherever_it_is(tmp_path: Path, data: bytes) -> None:
    source = random.Random(1)
    file = tmp_path / "tokenizer.model"
    refused, found = 0, FoundConverter(file.name, "test", FileConverter())
    for _ in range(150):
        damaged = bytearray(data[: source.randrange(len(data))] if source.random() < 0.5 else data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        file.write_bytes(damaged)
        begun = time.process_time()
        try:
            convert_tokenizer(file, found, {})
        except ParallaxError:
            refused += 1
        assert time.process_time() - begun < 5.0
    assert refused > 50


@pytest.mark.parametrize("count", [2**20 + 17, 10**7])
def test_too_many_pieces_are_refused_soon(tmp_path: Path, count: int) -> None:
    begun = time.process_time()
    with pytest.raises(ParallaxError, match="more than"):
        read(tmp_path, b"\x0a\x03\x0a\x01a" * count)
    assert time.process_time() - begun < 20.0
