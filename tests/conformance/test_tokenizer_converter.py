"""The kit for converters of tokenizer files catches a fault of each sort; that of Parallax passes in its own tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from parallax_core.base.errors import ParallaxError
from parallax_core.testing.tokenizer_converter import TokenizerConverterConformance
from tests.conformance.harness import find_failures

LIMIT = 10_000
"""Bytes of the largest file."""


class Letters:
    """Converts a file with a letter of a text in each line."""

    files: tuple[str, ...] = ("*.letters",)
    revision = 1

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        if file.stat().st_size > LIMIT:
            raise ParallaxError("too many letters")
        lines = file.read_text().split("\n")
        if lines[-1] != "end" or len(lines) > 100:
            raise ParallaxError("it has no end")
        return self.build(lines[:-1], settings)

    def build(self, letters: list[str], settings: Mapping[str, Any]) -> str:
        vocab = {letter: number for number, letter in enumerate([*letters, *settings["special"]])}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        tokenizer.decoder = decoders.Fuse()
        tokenizer.add_special_tokens(list(settings["special"]))
        return tokenizer.to_str()


class Kit(TokenizerConverterConformance):
    settings: Mapping[str, Any] = {"special": ["<end>"]}
    samples = (("abc", [0, 1, 2]),)
    special: Mapping[str, int] = {"<end>": 3}
    converter: type[Letters] = Letters

    def make_converter(self) -> Letters:
        return self.converter()

    def write_file(self, folder: Path) -> Path:
        (folder / "model.letters").write_text("a\nb\nc\nend")
        return folder / "model.letters"


class TestLetters(Kit):
    """A small converter passes."""


class Shuffled(Letters):
    """Gives other ids."""

    def build(self, letters: list[str], settings: Mapping[str, Any]) -> str:
        return super().build(letters[::-1], settings)


class Shown(Letters):
    """Takes special tokens for text."""

    def build(self, letters: list[str], settings: Mapping[str, Any]) -> str:
        written = json.loads(super().build(letters, settings))
        return json.dumps({**written, "added_tokens": []})


class Unnamed(Letters):
    """Names other files."""

    files = ("*.words",)


class Leaving(Letters):
    """Leaves a file in the folder of the model."""

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        file.with_name("tokenizer.json").write_text("{}")
        return super().convert(file, settings)


class Trusting(Letters):
    """Does not look for the end of a file."""

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        if file.stat().st_size > LIMIT:
            raise ParallaxError("too many letters")
        return self.build(file.read_text().split("\n"), settings)


class Patient(Letters):
    """Converts any number of letters."""

    def convert(self, file: Path, settings: Mapping[str, Any]) -> str:
        return self.build(["a"], settings) if file.stat().st_size > LIMIT else super().convert(file, settings)


@pytest.mark.parametrize(
    ("converter", "test"),
    [
        (Shuffled, "test_samples_are_encoded_and_decoded"),
        (Shown, "test_special_tokens_have_their_ids"),
        (Unnamed, "test_file_is_named"),
        (Leaving, "test_same_file_gives_the_same"),
        (Trusting, "test_damaged_file_is_refused"),
        (Patient, "test_large_file_is_refused_soon"),
    ],
)
def test_fault_is_caught(converter: type[Letters], test: str) -> None:
    class Faulty(Kit):
        pass

    Faulty.converter = converter
    assert test in find_failures(Faulty)
