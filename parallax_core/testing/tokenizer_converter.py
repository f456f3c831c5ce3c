"""The kit for converters of tokenizer files: the result encodes alike, and damage is refused."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from parallax_core.base.errors import ParallaxError
from parallax_core.checkpoint.tokenizer_converters import FoundConverter
from parallax_core.contracts.tokenizer import TokenizerConverter
from parallax_core.models.tokenizer_conversion import convert_tokenizer
from parallax_core.models.tokenizer_files import load_tokenizer
from parallax_core.testing.promise import broken, expect

FILES = "The names or patterns of the files that it converts"
CONVERT = "Return the contents of a ``tokenizer.json`` with all special tokens; run no code of the model."
ALONE = "in the folder of a model, and untrusted; nothing else there is read"
REFUSES = "in bounded time, if the file is damaged, too large, or of a kind that cannot be converted"
LIMIT_S = 30.0
"""Seconds that a refusal may take."""
LARGE = 10**7
"""Lines of a file that is too large."""


class TokenizerConverterConformance:
    """Holds a converter to its contract.

    Subclass it in a test module under a name that begins with ``Test``, and give `make_converter`, `write_file`,
    `settings` and `samples`.
    """

    settings: Mapping[str, Any] = {}
    """The settings beside the file."""
    samples: Sequence[tuple[str, Sequence[int]]]
    """Texts, each with its tokens, special ones included where the text has them."""
    special: Mapping[str, int] = {}
    """The special tokens and their ids."""

    def make_converter(self) -> TokenizerConverter:
        """Return the converter."""
        raise NotImplementedError

    def write_file(self, folder: Path) -> Path:
        """Write a file of a small model into an empty folder, and return its path."""
        raise NotImplementedError

    def test_samples_are_encoded_and_decoded(self, tmp_path: Path) -> None:
        """Each text gives its tokens, and they give the text."""
        tokenizer = self._load(tmp_path)
        for text, tokens in self.samples:
            found = tokenizer.encode(text, add_special_tokens=False).ids
            assert found == list(tokens), broken(f"{text!r} gives {found} instead of {list(tokens)}", CONVERT)
            decoded = tokenizer.decode(found, skip_special_tokens=False)
            assert decoded == text, broken(f"{text!r} is decoded as {decoded!r}", CONVERT)

    def test_special_tokens_have_their_ids(self, tmp_path: Path) -> None:
        """Each is found in a text as one token, and gives no text."""
        tokenizer = self._load(tmp_path)
        for text, token in self.special.items():
            found = tokenizer.encode(text, add_special_tokens=False).ids
            assert token in found, broken(f"the special token {text!r} gives {found} instead of {token}", CONVERT)
            shown = tokenizer.decode([token], skip_special_tokens=True)
            assert not shown, broken(f"the special token {text!r} gives the text {shown!r}", CONVERT)

    def test_file_is_named(self, tmp_path: Path) -> None:
        """A file of the model is among those that the converter is asked about."""
        file, converter = self.write_file(tmp_path), self.make_converter()
        is_named = any(Path(file.name).match(pattern) for pattern in converter.files)
        assert is_named, broken(f"{file.name} is none of {list(converter.files)}", FILES)

    def test_same_file_gives_the_same(self, tmp_path: Path) -> None:
        """The result can be cached, and the folder of the model stays as it is."""
        file, converter = self.write_file(tmp_path), self.make_converter()
        first = converter.convert(file, self.settings)
        (tmp_path / "tokenization_model.py").write_text("raise SystemExit")
        assert converter.convert(file, self.settings) == first, broken("the second result differs", ALONE)
        left = sorted(path.name for path in tmp_path.iterdir())
        assert left == sorted([file.name, "tokenization_model.py"]), broken(f"the folder has {left}", ALONE)

    def test_damaged_file_is_refused(self, tmp_path: Path) -> None:
        """A file that ends early, is empty, or has other contents is refused."""
        file, converter = self.write_file(tmp_path), self.make_converter()
        data = file.read_bytes()
        damages = {"half": data[: len(data) // 2 - 1], "empty": b"", "zeros": bytes(len(data)), "text": b"hello\n" * 99}
        for name, content in damages.items():
            file.write_bytes(content)
            with expect(ParallaxError, f"converting a damaged file ({name})", REFUSES):
                convert_tokenizer(file, FoundConverter(file.name, "kit", converter), self.settings)

    def test_large_file_is_refused_soon(self, tmp_path: Path) -> None:
        """A file with ten million lines, or of the model again and again, is refused in bounded time."""
        file, converter = self.write_file(tmp_path), self.make_converter()
        data = file.read_bytes()
        for content in (
            b"".join(b"%x %d\n" % (number, number) for number in range(LARGE)),
            data * (2**26 // len(data)),
        ):
            file.write_bytes(content)
            begun = time.perf_counter()
            with expect(ParallaxError, "converting a file that is too large", REFUSES):
                convert_tokenizer(file, FoundConverter(file.name, "kit", converter), self.settings)
            taken = time.perf_counter() - begun
            assert taken < LIMIT_S, broken(f"the refusal takes {taken:.0f} s", REFUSES)

    def _load(self, folder: Path) -> Tokenizer:
        file = self.write_file(folder)
        path = folder / "tokenizer.json"
        path.write_text(self.make_converter().convert(file, self.settings), encoding="utf-8")
        return load_tokenizer(path, self.settings)
