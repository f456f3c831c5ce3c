"""Output parsers: what a model's text means, where models mark reasoning and calls of tools in words of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from parallax_core.base.refs import Ref


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A part of a call: its name comes whole and first, with an empty piece of arguments; then pieces of them."""

    index: int
    """Which call of the answer, counted from 0."""
    name: str = ""
    arguments: str = ""
    """A piece of a JSON text; all pieces of one index together are the arguments."""


Piece = Content | Reasoning | ToolCall


class Parser(Protocol):
    """Reads one answer as it is generated.

    However the text is cut, its pieces are the same once neighbours of one kind are put together. Nothing the model
    wrote is lost but the marks themselves; what looks like a mark and turns out to be none is content.
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """Take more text, and return what is certain by now. Costs time in ``text``, not in all that came before."""

    def finish(self) -> Sequence[Piece]:
        """Return what was held back: the answer is over. Twice is harmless, and the second returns nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParserSpec:
    """Offers a parser of outputs."""

    name: str
    """What users ask for it as."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[], Parser]]
    """Makes a parser for one answer."""
    remedy: str = ""
    """What to do when the factory cannot be imported, such as what to install."""
