"""Output parsers, which find reasoning and tool calls in the text of a model that marks them in its own format."""

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
    """The model's reasoning, which is not part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A piece of a tool call: the first piece has the whole name and no arguments, later ones have only arguments."""

    index: int
    """The number of the call in the answer, counted from 0."""
    name: str = ""
    arguments: str = ""
    """A piece of JSON text; the pieces of one index concatenated are the arguments."""


Piece = Content | Reasoning | ToolCall


class Parser(Protocol):
    """Parses one answer as it is generated.

    However the text is split, the result is the same once adjacent pieces of one kind are joined. No text is lost
    except the markers themselves; text that looks like a marker and turns out not to be one is content.
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """Add text and return the pieces that are certain by now. Takes time in ``text``, not in all text so far."""

    def finish(self) -> Sequence[Piece]:
        """Return the pieces held back, at the end of the answer. A second call returns nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParserSpec:
    """Offers a parser of outputs."""

    name: str
    """The name by which users select it."""
    summary: str
    """One line for ``parallax plugins``."""
    factory: Ref[Callable[[], Parser]]
    """Makes a parser for one answer."""
    remedy: str = ""
    """What to do if the factory cannot be imported, such as the package to install."""
