"""The bytes and the text of single tokens, in each kind of vocabulary."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel

from parallax_core.models.vocabulary import SPACE, Vocabulary, byte_alphabet


def make_vocabulary(*pieces: str, decoder: decoders.Decoder | None = None) -> Vocabulary:
    """Return a vocabulary of these tokens, by their ids, and an added one."""
    tokenizer = Tokenizer(WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token=pieces[0]))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<\u0120end>", special=True)])
    return Vocabulary(tokenizer)


def test_alphabet_of_bytes_is_that_of_the_library() -> None:
    assert set(byte_alphabet()) == set(ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert (byte_alphabet()["a"], byte_alphabet()["\u0120"], byte_alphabet()["\u010a"]) == (0x61, 0x20, 0x0A)


def test_characters_of_a_byte_level_vocabulary_are_bytes() -> None:
    found = make_vocabulary("\u0120hello", "\u00c3", "\u00a9", "\u4f60", decoder=decoders.ByteLevel())
    assert [found.find_bytes(token) for token in range(4)] == [b" hello", b"\xc3", b"\xa9", "\u4f60".encode()]
    assert (found.find_piece(0), found.show(0), found.show(1)) == ("\u0120hello", " hello", "bytes:\\xc3")


def test_marks_of_a_sentencepiece_vocabulary_are_spaces_and_bytes() -> None:
    parts = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    found = make_vocabulary(f"{SPACE}a{SPACE}", "<0x0A>", "<0xe2>", "<0xE2>x", decoder=parts)
    assert [found.find_bytes(token) for token in range(4)] == [b" a ", b"\n", b"\xe2", b"<0xE2>x"]
    assert [found.show(token) for token in range(3)] == [" a ", "\n", "bytes:\\xe2"]


def test_tokens_of_other_vocabularies_stand_for_themselves() -> None:
    found = make_vocabulary("\u0120a", SPACE, "<0x0A>")
    assert [found.find_bytes(token) for token in range(3)] == ["\u0120a".encode(), SPACE.encode(), b"<0x0A>"]


@pytest.mark.parametrize("decoder", [None, decoders.ByteLevel(), decoders.Metaspace()])
def test_added_token_stands_for_itself_and_an_unused_id_for_nothing(decoder: decoders.Decoder | None) -> None:
    found = make_vocabulary("a", decoder=decoder)
    assert found.size == 2
    assert (found.find_bytes(1), found.show(1)) == ("<\u0120end>".encode(), "<\u0120end>")
    assert (found.find_bytes(2), found.find_piece(2), found.show(2)) == (b"", "", "")
