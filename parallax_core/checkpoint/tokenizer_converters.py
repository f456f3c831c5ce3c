"""Finds what converts the tokenizer files of a model without ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint, entry_points

from parallax_core.contracts.tokenizer import TokenizerConverter

GROUP = "parallax.tokenizers"
"""The entry-point group of functions that return a `TokenizerConverter`."""
INSTALL = "install what converts other files of tokenizers on this machine: pip install parallax-tokenizers"


@dataclass(frozen=True, slots=True)
class FoundConverter:
    """A converter for one of the files of a model."""

    file: str
    """The name of the file."""
    name: str
    """The distribution and the entry point that the converter is of."""
    converter: TokenizerConverter


def find_converter(names: Collection[str]) -> FoundConverter | None:
    """Return the first converter, by name, of one of the files in a model's folder."""
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        converter: TokenizerConverter = point.load()()
        for pattern in converter.files:
            if matching := sorted(name for name in names if fnmatchcase(name, pattern)):
                return FoundConverter(matching[0], _describe(point), converter)
    return None


def hint_at_converters() -> str:
    """Return what to do about a model without tokenizer.json, if this machine converts none; else nothing."""
    return "" if entry_points(group=GROUP) else INSTALL


def _describe(point: EntryPoint) -> str:
    return f"{point.dist.name if point.dist else ''}:{point.name}"
